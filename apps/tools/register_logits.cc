// `dsv4 logits` on the command line.
#include <CLI/CLI.hpp>
#include <memory>

#include "apps/command_line/command.h"
#include "apps/command_line/shared_flags.h"
#include "apps/tools/logits_command.h"
#include "speculation/drafter.h"

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
  CLI::Option* decode_from = logits
                                 .add_option("--decode-from", options.decode_from,
                                             "The first N tokens as prefill, the rest by steps")
                                 ->check(NonNegative());
  logits
      .add_option("--decode-rows", options.decode_rows,
                  "Tokens of each of these steps, as where drafts are verified")
      ->check(Positive())
      ->needs(decode_from)
      ->capture_default_str();
  CLI::Option* draft = logits
                           .add_option("--draft", options.draft,
                                       "Logits of drafts instead, float32 [num_tokens - 1, K, vocab_size]: "
                                       "mtp, the model's draft block, or dspark, its drafter of blocks")
                           ->check(CLI::IsMember({"mtp", "dspark"}));
  logits.add_option("--drafts", options.num_drafts, "K: drafts in a row")
      ->check(CLI::Range(int64_t{1}, speculation::kMostMtp))
      ->needs(draft)
      ->capture_default_str();
  logits
      .add_option("--confidence", options.confidence_path,
                  ".npy file, float32 [num_tokens - 1, K]: how likely each draft of dspark is right if those "
                  "before it are")
      ->needs(draft);
  logits.add_option("--dump", options.dump_path, "Write every tensor of the run into this new directory");
  logits.add_option("--chunk", options.chunk, "Prefill chunk size")->check(Positive());
  for (const char* other : {"--dump", "--chunk", "--decode-from"}) draft->excludes(logits.get_option(other));
  AddRankFlags(logits, commands.model(), "");
}

}  // namespace dsv4::apps
