// `--html`: the page of reports, with the command that made it.
#include "apps/diagnose/diagnose_page.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <filesystem>
#include <string_view>

#include "diag/report/html_report.h"
#include "io/output_file.h"

namespace dsv4::apps {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPlain =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%+,-./:=@_";

std::string Quoted(std::string_view word) {
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos) return std::string(word);
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace

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

std::string CommandLine(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    // The program's path stays private.
    line += line.empty() ? Quoted(fs::path(word).filename().string()) : " " + Quoted(word);
  }
  return line;
}

}  // namespace dsv4::apps
