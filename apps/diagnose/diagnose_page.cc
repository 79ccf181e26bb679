// `--html`: the page of reports, with the command that made it.
#include "apps/diagnose/diagnose_page.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <filesystem>

#include "diag/report/html_report.h"
#include "io/output_file.h"

namespace dsv4::apps {

namespace fs = std::filesystem;

Status CheckPagePath(const std::string& path) {
  std::error_code error;
  const fs::path directory = fs::path(path).parent_path();
  if (!directory.empty() && !fs::is_directory(directory, error)) {
    return NotFound(fmt::format("--html {}: {} is no directory", path, directory.string()));
  }
  if (fs::is_directory(path, error))
    return InvalidArgument(fmt::format("--html {}: a directory, wanted a file", path));
  return {};
}

Status WritePage(const DiagnoseSession& session, const std::vector<diag::CheckReport>& reports) {
  const DiagnoseOptions& options = session.options();
  const ModelFlags& flags = options.run.model;
  diag::PageHead head{.title = fmt::format("dsv4 diagnose {}", options.check)};
  head.facts = {{"command", options.command_line},
                {"model", session.source().name()},
                {"backend", session.BackendName()},
                {"numerics", flags.numerics},
                {"layers", flags.max_layers == 0 ? "all" : fmt::format("the first {}", flags.max_layers)},
                {"made", fmt::format("{:%Y-%m-%d %H:%M:%S} UTC, dsv4 {}", fmt::gmtime(std::time(nullptr)),
                                     options.version)}};
  head.stopped = options.check == "all" && !reports.empty() && reports.back().ends_run &&
                 reports.back().verdict == diag::Verdict::kFinding;
  return io::WriteTextFile(options.html_path, diag::ToHtml(head, reports)).WithContext("--html");
}

}  // namespace dsv4::apps
