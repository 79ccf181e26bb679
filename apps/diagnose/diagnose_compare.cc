// `compare`: the other run, from a dump, another backend, other numerics or the reference.
#include "apps/diagnose/diagnose_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "apps/diagnose/diagnose_ab.h"
#include "apps/shared/choose_backend.h"
#include "base/text.h"
#include "diag/checks/compare_check.h"
#include "diag/dump.h"
#include "diag/live_run.h"

namespace dsv4::apps {
namespace {

// Another run of ours. Its weights are the same mapped file.
struct OtherModel {
  std::unique_ptr<diag::HookedBackend> backend;
  std::unique_ptr<model::Model> model;
};

Result<OtherModel> LoadOther(DiagnoseSession& session, const ModelFlags& flags) {
  OtherModel other;
  DSV4_ASSIGN_OR_RETURN(ops::Backend backend, session.suspects().make_backend(flags));
  other.backend = std::make_unique<diag::HookedBackend>(std::move(backend));
  DSV4_ASSIGN_OR_RETURN(other.model, LoadModel(flags, session.source(), other.backend->backend(), {}, {},
                                               &other.backend->inner()));
  return other;
}

Result<diag::CheckReport> CompareWithRun(DiagnoseSession& session, const ModelFlags& flags,
                                         const std::vector<int32_t>& tokens,
                                         const diag::CompareOptions& options) {
  DSV4_ASSIGN_OR_RETURN(const diag::Subject subject, session.Model());
  DSV4_ASSIGN_OR_RETURN(const OtherModel other, LoadOther(session, flags));
  diag::LiveRun run({*other.model, *other.backend}, tokens);
  return diag::CheckCompare(subject, tokens, run, options);
}

Result<diag::CheckReport> CompareWithDump(DiagnoseSession& session, const diag::CompareOptions& options) {
  const std::string& path = session.options().with_path;
  DSV4_ASSIGN_OR_RETURN(diag::DumpFiles dump, diag::DumpFiles::Open(path));
  std::vector<int32_t> tokens = dump.TokenIds();
  if (tokens.empty()) {
    DSV4_ASSIGN_OR_RETURN(tokens, session.LongPrompt());
  }
  DSV4_TRY(session.CheckIds(tokens, path));
  DSV4_ASSIGN_OR_RETURN(const diag::Subject subject, session.Model());
  if (options.mode == diag::CompareMode::kSharedInputs)
    return diag::CheckCompare(subject, tokens, dump, options);
  return diag::CheckAgainstDump(subject, tokens, dump, options);
}

}  // namespace

double WorkPerToken(const model::Model& model) {
  const model::ModelConfig& c = model.config();
  const auto product = [](int64_t a, int64_t b) { return static_cast<double>(a) * static_cast<double>(b); };
  const double attention = product(c.hidden_size, c.q_lora_rank + c.head_dim) +
                           product(c.q_lora_rank, c.num_attention_heads * c.head_dim) +
                           product(c.o_lora_rank, c.num_attention_heads * c.head_dim) +
                           product(c.o_groups * c.o_lora_rank, c.hidden_size);
  const double experts = 3 * product(c.num_experts_per_tok + 1, c.hidden_size * c.moe_intermediate_size);
  return static_cast<double>(model.num_layers()) * (attention + experts) +
         product(c.vocab_size, c.hidden_size);
}

namespace {

// The reference backend is slow. This much takes it some ten seconds on two cores, and the small model's
// prompt a tenth of that.
constexpr double kReferenceWork = 3e10;
constexpr double kMinReferenceTokens = 8;  // Two blocks of the finest compressor.

// `all` without another run: against the judge, unless it is the judge that runs.
Result<diag::CheckReport> CompareWithReference(DiagnoseSession& session) {
  DSV4_ASSIGN_OR_RETURN(const diag::Subject subject, session.Model());
  DSV4_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, session.LongPrompt());
  const size_t num_tokens = tokens.size();
  const double affordable = std::max(kMinReferenceTokens, kReferenceWork / WorkPerToken(subject.model));
  if (static_cast<double>(num_tokens) > affordable) tokens.resize(static_cast<size_t>(affordable));
  const ModelFlags flags = WithBackend(session.options().run.model, "reference");
  DSV4_ASSIGN_OR_RETURN(diag::CheckReport report, CompareWithRun(session, flags, tokens,
                                                                 {.mode = diag::CompareMode::kSharedInputs,
                                                                  .same_contract = true,
                                                                  .bound = session.options().bound}));
  report.evidence.push_back(fmt::format("the other run: ours on the reference backend, {} of {}",
                                        tokens.size(), Counted(num_tokens, "token")));
  return report;
}

}  // namespace

Result<diag::CheckReport> RunCompare(DiagnoseSession& session) {
  const DiagnoseOptions& options = session.options();
  const diag::CompareOptions compare = {
      .mode = options.shared_inputs ? diag::CompareMode::kSharedInputs : diag::CompareMode::kAccumulated,
      .same_contract = options.with_path.empty() && options.with_numerics.empty(),
      .bound = options.bound};
  if (!options.ab.empty()) return RunAb(session, compare);
  if (!options.with_path.empty()) return CompareWithDump(session, compare);
  if (!options.with_backend.empty() || !options.with_numerics.empty()) {
    ModelFlags flags = options.run.model;
    if (!options.with_backend.empty()) flags = WithBackend(flags, options.with_backend);
    if (!options.with_numerics.empty()) flags.numerics = options.with_numerics;
    DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, session.LongPrompt());
    return CompareWithRun(session, flags, tokens, compare);
  }
  if (options.check == "all" && options.run.model.backend != "reference") {
    return CompareWithReference(session);
  }
  diag::CheckReport report{.check = "compare", .verdict = diag::Verdict::kNotApplicable};
  report.headline = "nothing to compare with";
  report.next_step =
      "give a dump with --with DIR, or --with-backend, --with-numerics or --ab for another run of ours";
  return report;
}

Status WriteOwnDump(DiagnoseSession& session, const std::string& path) {
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<int32_t> tokens, session.LongPrompt());
  DSV4_ASSIGN_OR_RETURN_STATUS(const diag::Subject subject, session.Model());
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::unique_ptr<diag::DumpWriter> dump,
                               diag::DumpWriter::Create(subject.context(), path));
  const Result<std::vector<float>> run =
      diag::RunTokens(subject, tokens, {}, model::LogitsRows::kAll, dump.get());
  if (!run) return run.error();
  return dump->Finish();
}

}  // namespace dsv4::apps
