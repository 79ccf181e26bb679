#include "apps/diagnose_compare.h"

#include <memory>
#include <utility>

#include "diag/compare_check.h"
#include "diag/dump.h"

namespace dsv4::apps {
namespace {

// The other run of `compare`: a dump, or ours on another backend or with other numerics.
Result<diag::Dump> OtherRun(DiagnoseSession& session, const std::vector<int32_t>& tokens) {
  const DiagnoseOptions& options = session.options();
  ModelFlags flags = options.run.model;
  if (!options.with_backend.empty()) flags.backend = options.with_backend;
  if (!options.with_numerics.empty()) flags.numerics = options.with_numerics;
  DSV4_ASSIGN_OR_RETURN(ops::Backend backend, session.suspects().make_backend(flags));
  diag::HookedBackend hooked(std::move(backend));
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<model::Model> model,
                        LoadModel(flags, session.directory(), hooked.backend(), {}));
  DSV4_ASSIGN_OR_RETURN(const diag::Recording recording,
                        diag::Record({*model, hooked}, tokens, {}, model::LogitsRows::kAll));
  return diag::ToDump(recording);
}

}  // namespace

Result<diag::CheckReport> RunCompare(DiagnoseSession& session) {
  const DiagnoseOptions& options = session.options();
  const bool has_other_run = !options.with_backend.empty() || !options.with_numerics.empty();
  if (options.with_path.empty() && !has_other_run) {
    diag::CheckReport report{.check = "compare", .verdict = diag::Verdict::kNotApplicable};
    report.headline = "nothing to compare with";
    report.next_step =
        "give a dump with --with DIR, or --with-backend or --with-numerics for another run of ours";
    return report;
  }
  DSV4_ASSIGN_OR_RETURN(const diag::Subject subject, session.Model());
  std::vector<int32_t> tokens;
  diag::Dump other;
  if (options.with_path.empty()) {
    DSV4_ASSIGN_OR_RETURN(tokens, session.LongPrompt());
    DSV4_ASSIGN_OR_RETURN(other, OtherRun(session, tokens));
  } else {
    DSV4_ASSIGN_OR_RETURN(other, diag::ReadDump(options.with_path));
    tokens = other.TokenIds();
    if (tokens.empty()) {
      DSV4_ASSIGN_OR_RETURN(tokens, session.LongPrompt());
    }
    DSV4_TRY(session.CheckIds(tokens, options.with_path));
  }
  const auto mode =
      options.shared_inputs ? diag::CompareMode::kSharedInputs : diag::CompareMode::kAccumulated;
  return diag::CheckCompare(subject, tokens, other, {.mode = mode, .bound = options.bound});
}

Status WriteOwnDump(DiagnoseSession& session, const std::string& path) {
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<int32_t> tokens, session.LongPrompt());
  DSV4_ASSIGN_OR_RETURN_STATUS(const diag::Subject subject, session.Model());
  DSV4_ASSIGN_OR_RETURN_STATUS(const diag::Recording recording,
                               diag::Record(subject, tokens, {}, model::LogitsRows::kAll));
  return diag::WriteDump(recording, path);
}

}  // namespace dsv4::apps
