// `dsv4 diagnose`: checks run, shown, and turned into an exit code.
#include "apps/diagnose/diagnose_command.h"

#include <fmt/format.h>

#include <cstdio>

#include "apps/diagnose/diagnose_checks.h"
#include "apps/diagnose/diagnose_compare.h"
#include "apps/diagnose/diagnose_page.h"
#include "apps/shared/model_source.h"

namespace dsv4::apps {
namespace {

// A wrong option of a check is bad usage, what a file holds is bad input, the rest is a failed run.
int ErrorExitCode(const Status& status) {
  return status.code() == StatusCode::kOutOfRange ? kExitBadUsage : LoadExitCode(status);
}

void Show(const diag::CheckReport& report, const DiagnoseOptions& options) {
  if (options.run.json) return;
  fmt::print("{}\n", diag::ToText(report));
  std::fflush(stdout);
}

}  // namespace

int RunDiagnoseCommand(const DiagnoseOptions& given) {
  DiagnoseOptions options = given;
  if (!options.run.prompt && options.run.messages_path.empty()) options.run.prompt = kDiagnoseQuestion;
  const Result<ModelSource> source = ModelSource::Find(options.run.model);
  if (!source) return Fail(source.error(), kExitBadInput);
  if (!options.html_path.empty()) {
    const Status status = CheckPagePath(options.html_path);
    if (!status.ok()) return Fail(status, ErrorExitCode(status));
  }
  DiagnoseSession session(options, {}, *source);
  const Result<std::vector<diag::CheckReport>> reports =
      Diagnose(session, [&](const diag::CheckReport& report) { Show(report, options); });
  if (!reports) return Fail(reports.error(), ErrorExitCode(reports.error()));
  if (!options.dump_path.empty()) {
    const Status status = WriteOwnDump(session, options.dump_path);
    if (!status.ok()) return Fail(status, ErrorExitCode(status));
  }
  if (!options.html_path.empty()) {
    const Status status = WritePage(session, *reports);
    if (!status.ok()) return Fail(status, ErrorExitCode(status));
  }
  if (options.run.json)
    fmt::print("{}\n", diag::ToJson(*reports));
  else
    fmt::print("diagnose: {}\n", diag::Summary(*reports));
  return diag::ExitCode(*reports);
}

}  // namespace dsv4::apps
