#include "apps/diagnose_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "apps/chat_runtime.h"
#include "apps/diagnose_prompt.h"
#include "apps/diagnose_stop_set.h"
#include "apps/logits_command.h"
#include "apps/terminal.h"
#include "base/log.h"
#include "base/read_file.h"
#include "diag/checkpoint_check.h"
#include "diag/compare_check.h"
#include "diag/decode_prefill_check.h"
#include "diag/dump.h"
#include "diag/residual_check.h"
#include "diag/sampler_check.h"
#include "diag/scale_invariance_check.h"
#include "diag/visible_check.h"
#include "io/checkpoint.h"
#include "model/weights.h"

namespace dsv4::apps {
namespace {

// Reads what several checks need once, when the first of them asks.
class Session {
 public:
  Session(const DiagnoseOptions& options, std::string directory)
      : options_(options), directory_(std::move(directory)) {}

  const DiagnoseOptions& options() const { return options_; }

  Result<const TextSubject*> Text() {
    if (!text_) {
      DSV4_ASSIGN_OR_RETURN(TextSubject text, LoadTextSubject(options_.run, directory_));
      text_ = std::make_unique<TextSubject>(std::move(text));
    }
    return text_.get();
  }

  Result<diag::Subject> Model() {
    if (!model_) {
      DSV4_ASSIGN_OR_RETURN(ops::Backend backend, MakeBackend(options_.run.model));
      backend_ = std::make_unique<diag::HookedBackend>(std::move(backend));
      ProgressBar bar("Loading");
      DSV4_ASSIGN_OR_RETURN(model_, LoadModel(options_.run.model, directory_, backend_->backend(),
                                              [&](int64_t done, int64_t total) { bar.Update(done, total); }));
      bar.Clear();
    }
    return diag::Subject{*model_, *backend_};
  }

  const std::string& directory() const { return directory_; }

  // InvalidArgument for an id that the model does not have; `what` names where it stood.
  Status CheckIds(const std::vector<int32_t>& ids, const std::string& what) {
    DSV4_ASSIGN_OR_RETURN_STATUS(const diag::Subject subject, Model());
    const int64_t vocab_size = subject.model.config().vocab_size;
    for (const int32_t id : ids) {
      if (id >= 0 && id < vocab_size) continue;
      return InvalidArgument(fmt::format("{}: token id {}, wanted 0..{}", what, id, vocab_size - 1));
    }
    return {};
  }

  // The ids of --tokens, else of the conversation.
  Result<std::vector<int32_t>> Prompt() {
    std::vector<int32_t> ids;
    if (options_.tokens_path.empty()) {
      DSV4_ASSIGN_OR_RETURN(const TextSubject* text, Text());
      ids = text->ids;
    } else {
      DSV4_ASSIGN_OR_RETURN(const std::string file, ReadFile(options_.tokens_path, FileKind::kAny));
      DSV4_ASSIGN_OR_RETURN(ids, ParseTokenIds(file, options_.tokens_path));
    }
    DSV4_TRY(CheckIds(ids, options_.tokens_path.empty() ? "prompt" : options_.tokens_path));
    return ids;
  }

  // The same, repeated up to --min-tokens: compressed layers have little to see in a short prompt.
  Result<std::vector<int32_t>> LongPrompt() {
    DSV4_ASSIGN_OR_RETURN(std::vector<int32_t> ids, Prompt());
    const size_t period = ids.size();
    while (static_cast<int64_t>(ids.size()) < options_.min_tokens) ids.push_back(ids[ids.size() - period]);
    return ids;
  }

 private:
  const DiagnoseOptions& options_;
  std::string directory_;
  std::unique_ptr<TextSubject> text_;
  std::unique_ptr<diag::HookedBackend> backend_;
  std::unique_ptr<model::Model> model_;
};

Result<std::string> ReadOptional(const std::string& path) {
  if (path.empty()) return std::string();
  DSV4_ASSIGN_OR_RETURN(std::string text, ReadFile(path, FileKind::kAny));
  if (text.empty()) return Error(InvalidArgument(fmt::format("{}: empty", path)));
  return text;
}

Result<diag::CheckReport> RunPrompt(Session& session) {
  DSV4_ASSIGN_OR_RETURN(const TextSubject* text, session.Text());
  const std::string& path = session.options().against_path;
  DSV4_ASSIGN_OR_RETURN(const std::string against, ReadOptional(path));
  return CheckPrompt(*text, against, path);
}

Result<diag::CheckReport> RunStopSet(Session& session) {
  DSV4_ASSIGN_OR_RETURN(const TextSubject* text, session.Text());
  const std::string& path = session.options().log_path;
  DSV4_ASSIGN_OR_RETURN(const std::string log, ReadOptional(path));
  return CheckStopSet(*text, log, path);
}

// The first token that the engine samples for `prompt`.
Result<int32_t> FirstToken(model::Model& model, const std::vector<int32_t>& prompt,
                           const std::vector<uint8_t>& allowed, const sampling::SamplingParams& params) {
  engine::Engine engine(model, engine::EngineOptions{}, allowed);
  DSV4_ASSIGN_OR_RETURN(
      const engine::RequestId id,
      engine.Submit({.prompt = prompt, .sampling = params, .max_tokens = 1, .prefix = std::nullopt}));
  std::optional<int32_t> token;
  while (!engine.idle()) {
    for (const engine::Event& event : engine.Step()) {
      if (event.request != id) continue;
      if (event.kind == engine::Event::Kind::kToken) token = event.token.id;
      if (event.kind == engine::Event::Kind::kFinished && !event.status.ok()) return Error(event.status);
    }
  }
  if (!token) return Error(Internal("the engine ended without a token"));
  return *token;
}

Result<diag::CheckReport> RunSampler(Session& session) {
  DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, session.Prompt());
  DSV4_ASSIGN_OR_RETURN(const diag::Subject subject, session.Model());
  const int64_t vocab_size = subject.model.config().vocab_size;
  const sampling::SamplingParams& params = session.options().run.sampling;
  DSV4_TRY(sampling::ValidateSamplingParams(params, vocab_size));
  std::vector<uint8_t> allowed;
  if (session.options().tokens_path.empty()) {
    DSV4_ASSIGN_OR_RETURN(const TextSubject* text, session.Text());
    allowed = AllowedTokens(text->tokenizer, vocab_size);
  }
  DSV4_ASSIGN_OR_RETURN(const std::vector<float> logits,
                        diag::RunTokens(subject, prompt, {}, model::LogitsRows::kLast));
  return diag::CheckSampler({.logits = logits,
                             .prompt = prompt,
                             .allowed = allowed,
                             .params = params,
                             .first_token = [&](const sampling::SamplingParams& probe) {
                               return FirstToken(subject.model, prompt, allowed, probe);
                             }});
}

Result<diag::CheckReport> RunScaleInvariance(Session& session) {
  DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, session.LongPrompt());
  DSV4_ASSIGN_OR_RETURN(const diag::Subject subject, session.Model());
  return diag::CheckScaleInvariance(subject, tokens);
}

Result<diag::CheckReport> RunResidual(Session& session) {
  DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, session.LongPrompt());
  DSV4_ASSIGN_OR_RETURN(const diag::Subject subject, session.Model());
  return diag::CheckResidual(subject, tokens);
}

Result<diag::CheckReport> RunVisible(Session& session) {
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
    report.evidence.push_back(
        fmt::format("the first {} of {} tokens: what one pass of the model holds", one_pass, num_tokens));
  }
  return report;
}

Result<diag::CheckReport> RunDecodePrefill(Session& session) {
  DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, session.LongPrompt());
  DSV4_ASSIGN_OR_RETURN(const diag::Subject subject, session.Model());
  return diag::CheckDecodePrefill(
      subject, tokens, {.chunk = session.options().chunk, .tolerance = session.options().tolerance});
}

Result<diag::CheckReport> RunCheckpoint(Session& session) {
  DSV4_ASSIGN_OR_RETURN(const model::ModelConfig config, model::LoadModelConfig(session.directory()));
  DSV4_ASSIGN_OR_RETURN(const std::shared_ptr<const io::Checkpoint> checkpoint,
                        io::Checkpoint::Open(session.directory()));
  model::LoadOptions options;
  const ModelFlags& flags = session.options().run.model;
  if (flags.numerics == "plain") options.numerics = model::Numerics::kPlain;
  if (flags.max_layers > 0) options.max_layers = flags.max_layers;
  // The mapped file once more, not a second copy.
  DSV4_ASSIGN_OR_RETURN(const model::ModelWeights weights, model::LoadWeights(checkpoint, config, options));
  return diag::CheckCheckpoint(config, weights);
}

// The other run of `compare`: a dump, or ours on another backend or with other numerics.
Result<diag::Dump> OtherRun(Session& session, const std::vector<int32_t>& tokens) {
  const DiagnoseOptions& options = session.options();
  ModelFlags flags = options.run.model;
  if (!options.with_backend.empty()) flags.backend = options.with_backend;
  if (!options.with_numerics.empty()) flags.numerics = options.with_numerics;
  DSV4_ASSIGN_OR_RETURN(ops::Backend backend, MakeBackend(flags));
  diag::HookedBackend hooked(std::move(backend));
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<model::Model> model,
                        LoadModel(flags, session.directory(), hooked.backend(), {}));
  DSV4_ASSIGN_OR_RETURN(const diag::Recording recording,
                        diag::Record({*model, hooked}, tokens, {}, model::LogitsRows::kAll));
  return diag::ToDump(recording);
}

Result<diag::CheckReport> RunCompare(Session& session) {
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

// --dump: one prefill of the tokens that the checks of the model look at.
Status WriteOwnDump(Session& session, const std::string& path) {
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<int32_t> tokens, session.LongPrompt());
  DSV4_ASSIGN_OR_RETURN_STATUS(const diag::Subject subject, session.Model());
  DSV4_ASSIGN_OR_RETURN_STATUS(const diag::Recording recording,
                               diag::Record(subject, tokens, {}, model::LogitsRows::kAll));
  return diag::WriteDump(recording, path);
}

struct NamedCheck {
  std::string name;
  std::function<Result<diag::CheckReport>(Session&)> run;
};

// In the order of `all`: whatever makes a later check meaningless comes before it.
const std::vector<NamedCheck>& Checks() {
  static const std::vector<NamedCheck> checks = {{"prompt", RunPrompt},
                                                 {"stop-set", RunStopSet},
                                                 {"sampler", RunSampler},
                                                 {"scale-invariance", RunScaleInvariance},
                                                 {"residual", RunResidual},
                                                 {"visible", RunVisible},
                                                 {"decode-prefill", RunDecodePrefill},
                                                 {"compare", RunCompare},
                                                 {"checkpoint", RunCheckpoint}};
  return checks;
}

// A wrong option of a check is bad usage, what a file holds is bad input, the rest is a failed run.
int ErrorExitCode(const Status& status) {
  return status.code() == StatusCode::kOutOfRange ? kExitBadUsage : LoadExitCode(status);
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

int RunDiagnoseCommand(const DiagnoseOptions& given) {
  DiagnoseOptions options = given;
  if (!options.run.prompt && options.run.messages_path.empty()) options.run.prompt = kDiagnoseQuestion;
  const Result<std::string> directory = ResolveModelDirectory(options.run.model);
  if (!directory) return Fail(directory.error(), kExitBadInput);
  Session session(options, *directory);
  std::vector<diag::CheckReport> reports;
  for (const NamedCheck& check : Checks()) {
    if (options.check != "all" && options.check != check.name) continue;
    const Result<diag::CheckReport> report = check.run(session);
    if (!report) return Fail(report.error().WithContext(check.name), ErrorExitCode(report.error()));
    if (!options.run.json) fmt::print("{}\n", diag::ToText(*report));
    reports.push_back(*report);
    if (report->ends_run && report->verdict == diag::Verdict::kFinding && options.check == "all") {
      if (!options.run.json) fmt::print("stopped: the checks after {} would mean nothing\n", check.name);
      break;
    }
  }
  if (!options.dump_path.empty()) {
    const Status status = WriteOwnDump(session, options.dump_path);
    if (!status.ok()) return Fail(status, ErrorExitCode(status));
  }
  if (options.run.json) fmt::print("{}\n", diag::ToJson(reports));
  return diag::ExitCode(reports);
}

}  // namespace dsv4::apps
