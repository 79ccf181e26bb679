// List of checks in order, and what each is given.
#include "apps/diagnose/diagnose_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "apps/diagnose/diagnose_compare.h"
#include "apps/diagnose/diagnose_knowledge.h"
#include "apps/diagnose/diagnose_prompt.h"
#include "apps/diagnose/diagnose_stop_set.h"
#include "apps/terminal/terminal.h"
#include "base/read_file.h"
#include "base/text.h"
#include "diag/checks/checkpoint_check.h"
#include "diag/checks/decode_prefill_check.h"
#include "diag/checks/draft_check.h"
#include "diag/checks/file_digests.h"
#include "diag/checks/ngram_check.h"
#include "diag/checks/residual_check.h"
#include "diag/checks/sampler_check.h"
#include "diag/checks/scale_invariance_check.h"
#include "diag/checks/visible_check.h"
#include "io/checkpoint.h"
#include "model/checkpoint/weights.h"

namespace dsv4::apps {
namespace {

Result<std::string> ReadOptional(const std::string& path) {
  if (path.empty()) return std::string();
  DSV4_ASSIGN_OR_RETURN(std::string text, ReadFile(path, FileKind::kAny));
  if (text.empty()) return Error(InvalidArgument(fmt::format("{}: empty", path)));
  return text;
}

// Bytes of a model's files that `all` reads to compare digests: some seconds.
constexpr int64_t kAffordableBytes = int64_t{4} << 30;

Result<diag::CheckReport> RunFiles(DiagnoseSession& session) {
  if (session.source().synthetic()) {
    return diag::NotApplicable({.check = "files"}, "synthetic weights have no files");
  }
  return diag::CheckFiles(session.source().name(), session.options().check == "all" ? kAffordableBytes : 0);
}

Result<diag::CheckReport> RunPrompt(DiagnoseSession& session) {
  DSV4_ASSIGN_OR_RETURN(const TextSubject* text, session.Text());
  const std::string& path = session.options().against_path;
  DSV4_ASSIGN_OR_RETURN(const std::string against, ReadOptional(path));
  return CheckPrompt(*text, against, path);
}

Result<diag::CheckReport> RunStopSet(DiagnoseSession& session) {
  DSV4_ASSIGN_OR_RETURN(const TextSubject* text, session.Text());
  const std::string& path = session.options().log_path;
  DSV4_ASSIGN_OR_RETURN(const std::string log, ReadOptional(path));
  return CheckStopSet(*text, log, path);
}

Result<diag::CheckReport> RunSampler(DiagnoseSession& session) {
  DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, session.Prompt());
  DSV4_ASSIGN_OR_RETURN(const diag::Subject subject, session.Model());
  const int64_t vocab_size = subject.model.config().vocab_size;
  const sampling::SamplingParams& params = session.options().run.sampling;
  DSV4_TRY(sampling::ValidateSamplingParams(params, vocab_size));
  std::vector<uint8_t> allowed;
  if (session.options().tokens_path.empty()) {
    DSV4_ASSIGN_OR_RETURN(const TextSubject* text, session.Text());
    allowed = text->AllowedTokens();
  }
  DSV4_ASSIGN_OR_RETURN(const std::vector<float> logits,
                        diag::RunTokens(subject, prompt, {}, model::LogitsRows::kLast));
  return diag::CheckSampler({.logits = logits,
                             .prompt = prompt,
                             .allowed = allowed,
                             .params = params,
                             .first_token = [&](const sampling::SamplingParams& probe) {
                               return session.suspects().first_token(subject.model, prompt, allowed, probe);
                             }});
}

Result<diag::CheckReport> RunScaleInvariance(DiagnoseSession& session) {
  DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, session.LongPrompt());
  DSV4_ASSIGN_OR_RETURN(const diag::Subject subject, session.Model());
  return diag::CheckScaleInvariance(subject, tokens);
}

Result<diag::CheckReport> RunResidual(DiagnoseSession& session) {
  DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, session.LongPrompt());
  DSV4_ASSIGN_OR_RETURN(const diag::Subject subject, session.Model());
  return diag::CheckResidual(subject, tokens);
}

Result<diag::CheckReport> RunVisible(DiagnoseSession& session) {
  DSV4_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, session.LongPrompt());
  DSV4_ASSIGN_OR_RETURN(const diag::Subject subject, session.Model());
  const size_t num_tokens = tokens.size();
  const auto one_pass = static_cast<size_t>(subject.model.options().max_chunk_tokens);
  if (num_tokens > one_pass) tokens.resize(one_pass);
  DSV4_ASSIGN_OR_RETURN(
      diag::CheckReport report,
      diag::CheckVisible(subject, tokens,
                         {.layer = session.options().layer, .position = session.options().position}));
  if (num_tokens > one_pass) {
    report.evidence.push_back(fmt::format("the first {} of {}: what one pass of the model holds", one_pass,
                                          Counted(num_tokens, "token")));
  }
  return report;
}

Result<diag::CheckReport> RunDecodePrefill(DiagnoseSession& session) {
  DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, session.LongPrompt());
  DSV4_ASSIGN_OR_RETURN(const diag::Subject subject, session.Model());
  return diag::CheckDecodePrefill(
      subject, tokens, {.chunk = session.options().chunk, .tolerance = session.options().tolerance});
}

Result<diag::CheckReport> RunDraft(DiagnoseSession& session) {
  DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, session.Prompt());
  DSV4_ASSIGN_OR_RETURN(const diag::Subject subject, session.Model());
  return diag::CheckDraft(subject, prompt, {});
}

// Weights of the file that the model under test maps too.
Result<model::ModelWeights> WeightsOf(const DiagnoseSession& session, const model::ModelConfig& config) {
  DSV4_ASSIGN_OR_RETURN(const std::shared_ptr<const io::Checkpoint> checkpoint,
                        session.source().Checkpoint());
  model::LoadOptions options;
  const ModelFlags& flags = session.options().run.model;
  if (flags.numerics == "plain") options.numerics = model::Numerics::kPlain;
  if (flags.max_layers > 0 && !session.source().synthetic()) options.max_layers = flags.max_layers;
  return model::LoadWeights(checkpoint, config, options);
}

Result<diag::CheckReport> RunCheckpoint(DiagnoseSession& session) {
  DSV4_ASSIGN_OR_RETURN(const model::ModelConfig config, session.source().Config());
  DSV4_ASSIGN_OR_RETURN(const model::ModelWeights weights, WeightsOf(session, config));
  DSV4_ASSIGN_OR_RETURN(const bool random, HasRandomWeights(session.source()));
  return diag::CheckCheckpoint(config, weights, random);
}

Result<diag::CheckReport> RunNgram(DiagnoseSession& session) {
  DSV4_ASSIGN_OR_RETURN(const model::ModelConfig config, session.source().Config());
  if (!config.engram.has_value()) {
    return diag::NotApplicable({.check = "ngram"}, "the model has no n-gram tables");
  }
  DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, session.LongPrompt());
  DSV4_ASSIGN_OR_RETURN(const diag::Subject subject, session.Model());
  DSV4_ASSIGN_OR_RETURN(const model::ModelWeights weights, WeightsOf(session, config));
  return diag::CheckNgramRows(subject, tokens, weights);
}

struct NamedCheck {
  std::string name;
  Result<diag::CheckReport> (*run)(DiagnoseSession&) = nullptr;
  bool in_all = true;         // The others look at the model alone, which is loaded once.
  bool wants_engram = false;  // In `all` of a model with n-gram tables alone.
};

// In the order of `all`: whatever makes a later check meaningless comes before it.
const std::vector<NamedCheck>& Checks() {
  static const std::vector<NamedCheck> checks = {{"files", RunFiles},
                                                 {"prompt", RunPrompt},
                                                 {"stop-set", RunStopSet},
                                                 {"sampler", RunSampler},
                                                 {"scale-invariance", RunScaleInvariance},
                                                 {"residual", RunResidual},
                                                 {"visible", RunVisible},
                                                 {"ngram", RunNgram, /*in_all=*/true, /*wants_engram=*/true},
                                                 {"decode-prefill", RunDecodePrefill},
                                                 {"compare", RunCompare},
                                                 {"knowledge", RunKnowledge},
                                                 {"indexer", RunIndexer},
                                                 {"router", RunRouter},
                                                 {"draft", RunDraft, /*in_all=*/false},
                                                 {"checkpoint", RunCheckpoint}};
  return checks;
}

}  // namespace

const std::vector<std::string>& DiagnoseChecks() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> made;
    for (const NamedCheck& check : Checks()) made.push_back(check.name);
    made.emplace_back("all");
    return made;
  }();
  return names;
}

Result<std::vector<diag::CheckReport>> Diagnose(DiagnoseSession& session,
                                                const std::function<void(const diag::CheckReport&)>& show) {
  const bool all = session.options().check == "all";
  const Result<model::ModelConfig> config = session.source().Config();
  const bool has_engram = config.has_value() && config->engram.has_value();
  const auto in_all = [&](const NamedCheck& check) {
    return check.in_all && (has_engram || !check.wants_engram);
  };
  std::vector<diag::CheckReport> reports;
  for (const NamedCheck& check : Checks()) {
    if (all ? !in_all(check) : session.options().check != check.name) continue;
    Result<diag::CheckReport> report = [&] {
      const ElapsedLine line(all ? fmt::format("{} (check {} of {})", check.name, reports.size() + 1,
                                               std::ranges::count_if(Checks(), in_all))
                                 : check.name);
      return check.run(session);
    }();
    if (!report) return Error(report.error().WithContext(check.name));
    show(*report);
    reports.push_back(std::move(*report));
    if (all && reports.back().ends_run && reports.back().verdict == diag::Verdict::kFinding) break;
  }
  return reports;
}

}  // namespace dsv4::apps
