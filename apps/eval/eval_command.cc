// `dsv4 eval`: loading, the task, bounds and output files.
#include "apps/eval/eval_command.h"

#include <fmt/format.h>

#include "apps/eval/eval_report.h"
#include "apps/eval/eval_tasks.h"
#include "apps/shared/choose_backend.h"
#include "apps/shared/model_source.h"
#include "apps/terminal/load_bar.h"
#include "base/text.h"
#include "io/output_file.h"
#include "session/answer_options.h"

namespace dsv4::apps {
namespace {

Result<std::unique_ptr<EvalModel>> Load(const EvalOptions& options, const ModelFlags& flags) {
  LoadBar load_bar(/*shown=*/!options.quiet);
  return EvalModel::Load(flags, options.revision, load_bar.callback());
}

// Model for the tasks that the model answers: loaded as `run` does.
Result<std::unique_ptr<ChatRuntime>> LoadToAnswer(const EvalOptions& options) {
  LoadBar load_bar(/*shown=*/!options.quiet);
  return ChatRuntime::Load({.model = options.model, .revision = options.revision}, load_bar.callback());
}

// Check of options that only the model knows about.
Status CheckAnswerOptions(const EvalOptions& options, const ChatRuntime& runtime) {
  DSV4_RETURN_IF_ERROR(runtime.text().CheckEffort(options.effort));
  return sampling::ValidateSamplingParams(options.sampling, runtime.model().config().vocab_size);
}

// The model to compare with: as the first, but for what --against-... says.
ModelFlags OtherFlags(const EvalOptions& options) {
  ModelFlags flags = options.model;
  if (!options.against_model.empty()) {
    flags.model = options.against_model;
    flags.weights.clear();
  }
  if (!options.against_backend.empty()) flags = WithBackend(flags, options.against_backend);
  if (!options.against_numerics.empty()) flags.numerics = options.against_numerics;
  return flags;
}

}  // namespace

int RunEvalCommand(const EvalOptions& options) {
  if (const Status status = session::CheckStop("--stop", options.stop); !status.ok())
    return Fail(status, kExitBadUsage);
  const bool perplexity = options.task == "perplexity";
  const auto refuse = [&](const char* what) {
    return Fail(InvalidArgument(fmt::format("eval {}: takes no {}", options.task, what)), kExitBadUsage);
  };
  if (!perplexity && (options.compares() || !options.write_path.empty() || options.window > 0))
    return refuse("--against-..., --write-logprobs or --window, which are for perplexity");
  if (!perplexity && (options.max_perplexity || options.max_kl || options.min_top1))
    return refuse("--max-perplexity, --max-kl or --min-top1, which are for perplexity");
  if (perplexity && options.min_accuracy) return refuse("--min-accuracy");
  if (options.compares()) {
    const Status usable = CheckModelFlags(OtherFlags(options));
    if (!usable.ok()) return Fail(usable.WithContext("eval --against-..."), kExitBadUsage);
  }
  const Result<std::vector<DataLine>> lines = ReadJsonLines(options.data_path, options.limit);
  if (!lines) return Fail(lines.error(), kExitBadInput);
  for (const auto& [name, path] : {std::pair{"--output", &options.output_path},
                                   {"--html", &options.html_path},
                                   {"--write-logprobs", &options.write_path}}) {
    if (path->empty()) continue;
    const Status writable = io::CheckOutputPath(*path, options.data_path);
    if (!writable.ok()) return Fail(writable.WithContext(name), kExitBadInput);
  }

  EvalProgress progress(!options.quiet, lines->size());
  EvalReport report = {.task = options.task};
  std::string name;
  Status status;
  if (perplexity || options.task == "choice") {
    const Result<std::unique_ptr<EvalModel>> model = Load(options, options.model);
    if (!model) return Fail(model.error(), LoadExitCode(model.error()));
    name = (*model)->name();
    std::unique_ptr<EvalModel> other;
    if (options.compares()) {
      Result<std::unique_ptr<EvalModel>> loaded = Load(options, OtherFlags(options));
      if (!loaded) return Fail(loaded.error(), LoadExitCode(loaded.error()));
      other = std::move(*loaded);
      if (other->vocab_size() != (*model)->vocab_size()) {
        return Fail(InvalidArgument(fmt::format("{} has {}, {} has {}", name,
                                                Counted((*model)->vocab_size(), "token"), other->name(),
                                                other->vocab_size())),
                    kExitBadInput);
      }
    }
    status = perplexity ? EvalPerplexity(options, *lines, **model, other.get(), progress, report)
                        : EvalChoice(options, *lines, **model, progress, report);
  } else {
    const Result<ModelSource> source = ModelSource::Find(options.model);
    if (!source) return Fail(source.error(), LoadExitCode(source.error()));
    name = source->name();
    const Result<std::unique_ptr<ChatRuntime>> runtime = LoadToAnswer(options);
    if (!runtime) return Fail(runtime.error(), LoadExitCode(runtime.error()));
    if (const Status known = CheckAnswerOptions(options, **runtime); !known.ok())
      return Fail(known, kExitBadUsage);
    status = EvalAnswers(options, *lines, **runtime, progress, report);
  }
  progress.Clear();
  if (!status.ok()) return Fail(status, LoadExitCode(status));
  return Finish(options, report, name);
}

}  // namespace dsv4::apps
