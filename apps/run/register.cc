// `dsv4 run` on the command line.
#include <CLI/CLI.hpp>
#include <memory>

#include "apps/command_line/command.h"
#include "apps/command_line/shared_flags.h"
#include "apps/run/run_command.h"
#include "apps/shared/speculation_flag.h"

namespace dsv4::apps {

void RegisterRun(Commands& commands) {
  const auto kept = std::make_shared<RunOptions>();
  RunOptions& options = *kept;
  CLI::App& run = commands.AddOverRanks("run", "Answer a prompt, or chat on the terminal without one",
                                        [kept](const Invocation& invocation) {
                                          kept->model = invocation.model;
                                          return RunRunCommand(*kept);
                                        });
  run.add_option(
      "PROMPT,-p,--prompt", options.prompt,
      "The question; what comes through a pipe is added to it; '-': only that; none starts a chat");
  run.add_option("--reasoning", options.reasoning,
                 "show: beside the answer on a terminal, else on standard error; hide; only: no answer")
      ->check(CLI::IsMember({"show", "hide", "only"}))
      ->capture_default_str();
  run.add_flag("-i,--interactive", options.interactive, "A chat; PROMPT is its first message");
  run.add_flag("-c,--continue", options.go_on, "Go on with the last conversation, by PROMPT or in a chat");
  run.add_flag("--anyway", options.anyway, "Answer where the model's notice would stop it");
  run.add_flag("-q,--quiet", options.quiet, "Nothing but the answer: no progress, no speed");
  run.add_flag("--raw", options.raw, "Continue PROMPT as it is, without the chat template");
  AddConversationFlags(run, options);
  run.add_option(
         "--tool-command", options.tool_commands,
         "NAME=COMMAND: calls of this tool are answered by COMMAND, which reads the arguments as JSON "
         "on standard input; may be repeated")
      ->allow_extra_args(false)
      ->type_name("NAME=COMMAND")
      ->needs("--tools")
      ->group("Conversation");
  run.add_option("-n,--max-tokens", options.max_tokens,
                 "Answer length at most, reasoning included (default: 65536 while thinking, 131072 at effort "
                 "max, 8192 without, 4096 with --raw)")
      ->check(Positive());
  run.add_option("--stop", options.stop, "End the answer before this text; may be repeated")
      ->allow_extra_args(false);
  AddContentFlags(run, options.content);
  run.add_option("--logprobs", options.num_logprobs,
                 "With --json: log-probabilities and the N most probable tokens")
      ->check(CLI::Range(0, 20));
  run.add_option("--verify", options.verify_every,
                 "Compute every N-th decode token again on the reference backend and report drift (0: none)")
      ->check(NonNegative())
      ->capture_default_str();
  run.add_option("--dump", options.dump_path, "Write every tensor of the run into this new directory");
  run.add_option("--speculation", options.speculation, kSpeculationHelp)->capture_default_str();
  AddSamplingFlags(run, options);
  AddRankFlags(run, commands.model(), "latency");
}

}  // namespace dsv4::apps
