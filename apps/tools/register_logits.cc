// `dsv4 logits` on the command line.
#include <CLI/CLI.hpp>
#include <memory>

#include "apps/command_line/command.h"
#include "apps/command_line/shared_flags.h"
#include "apps/tools/logits_command.h"

namespace dsv4::apps {

void RegisterLogits(Commands& commands) {
  const auto kept = std::make_shared<LogitsOptions>();
  LogitsOptions& options = *kept;
  CLI::App& logits = commands.AddOverRanks("logits", "Write the logits of every position of a token file",
                                           [kept](const Invocation& invocation) {
                                             kept->model = invocation.model;
                                             return RunLogitsCommand(*kept);
                                           });
  logits.add_option("--tokens", options.tokens_path, "Token ids: a JSON list, or separated by white space")
      ->required();
  logits.add_option("--output", options.output_path, ".npy file, float32 [num_tokens, vocab_size]")
      ->required();
  logits
      .add_option("--decode-from", options.decode_from, "The first N tokens as prefill, the rest one by one")
      ->check(NonNegative());
  logits.add_option("--dump", options.dump_path, "Write every tensor of the run into this new directory");
  logits.add_option("--chunk", options.chunk, "Prefill chunk size")->check(Positive());
  AddRankFlags(logits, commands.model());
}

}  // namespace dsv4::apps
