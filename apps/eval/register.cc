// `dsv4 eval` on the command line.
#include <CLI/CLI.hpp>
#include <memory>

#include "apps/command_line/command.h"
#include "apps/command_line/shared_flags.h"
#include "apps/eval/eval_command.h"
#include "apps/terminal/printable.h"

namespace dsv4::apps {

void RegisterEval(Commands& commands) {
  const auto kept = std::make_shared<EvalOptions>();
  EvalOptions& options = *kept;
  CLI::App& eval = commands.Add("eval", "Measure quality: perplexity, KL, choices, answers, calls of tools",
                                [kept](const Invocation& invocation) {
                                  kept->model = invocation.model;
                                  kept->command_line = CommandLine(invocation.words);
                                  kept->version = DSV4_VERSION;
                                  return RunEvalCommand(*kept);
                                });
  eval.add_option("TASK", options.task, "perplexity, choice, generation, tools or needle")
      ->required()
      ->check(CLI::IsMember({"perplexity", "choice", "generation", "tools", "needle"}));
  eval.add_option("--data", options.data_path,
                  "JSON lines: texts, questions or requests (docs/evaluation.md)")
      ->required();
  eval.add_option("--limit", options.limit, "Only so many lines (0: all)")
      ->check(NonNegative())
      ->capture_default_str();
  eval.add_option("--bos", options.bos, "Whether texts begin with the token that begins a sequence")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  eval.add_option("--window", options.window, "Cut texts into pieces of so many scored tokens (0: not)")
      ->check(NonNegative())
      ->capture_default_str();
  eval.add_option("--against-model", options.against_model, "Compare with the model of this directory");
  eval.add_option("--against-backend", options.against_backend, "Compare with this backend")
      ->check(CLI::IsMember({"reference", "cpu", "cuda"}));
  eval.add_option("--against-numerics", options.against_numerics, "Compare with these numerics")
      ->check(CLI::IsMember({"release", "plain"}));
  eval.add_option("--write-logprobs", options.write_path,
                  "Write what each token's probability was, to compare with later");
  eval.add_option("--top", options.top, "Candidates a token in that file")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  eval.add_option("--max-perplexity", options.max_perplexity, "Exit code 1 above this")->check(Positive());
  eval.add_option("--max-kl", options.max_kl, "Exit code 1 above this mean divergence, in nats")
      ->check(NonNegative());
  eval.add_option("--min-top1", options.min_top1, "Exit code 1 below this share of equal first candidates")
      ->check(Between(0, 1));
  eval.add_option("--min-accuracy", options.min_accuracy, "Exit code 1 below this share of right answers")
      ->check(Between(0, 1));
  eval.add_option("--output", options.output_path, "Write a JSON line for each line of the data");
  eval.add_option("--html", options.html_path, "Write a page with the figures drawn");
  eval.add_flag("--json", options.json, "One JSON document");
  eval.add_flag("-q,--quiet", options.quiet, "No progress");
  eval.add_option("--thinking-mode", options.thinking_mode, "thinking or chat")
      ->check(CLI::IsMember({"thinking", "chat"}))
      ->capture_default_str();
  eval.add_option("--effort", options.effort, "Reasoning effort; default: the model's own");
  eval.add_option("--revision", options.revision, "Chat format; default: detected")->check(KnownRevision());
  eval.add_option("-n,--max-tokens", options.max_tokens, "Answer length at most")
      ->check(Positive())
      ->capture_default_str();
  eval.add_option("--stop", options.stop, "End an answer before this text; may be repeated")
      ->allow_extra_args(false);
  options.sampling.temperature = 0.0F;
  eval.add_option("--temperature", options.sampling.temperature, "Of answers; 0: the most probable token")
      ->check(NonNegative())
      ->capture_default_str();
  eval.add_option("--top-p", options.sampling.top_p, "Of answers")->capture_default_str();
  eval.add_option("--seed", options.sampling.seed, "Of answers; line i has it plus i")
      ->check(Seed())
      ->capture_default_str();
}

}  // namespace dsv4::apps
