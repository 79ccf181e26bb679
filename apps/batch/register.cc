// `dsv4 batch` on the command line.
#include <CLI/CLI.hpp>
#include <memory>

#include "apps/batch/batch_command.h"
#include "apps/command_line/command.h"
#include "apps/command_line/shared_flags.h"
#include "apps/shared/speculation_flag.h"

namespace dsv4::apps {

void RegisterBatch(Commands& commands) {
  const auto kept = std::make_shared<BatchOptions>();
  BatchOptions& options = *kept;
  CLI::App& batch = commands.AddOverRanks("batch", "Answer a file of requests, in OpenAI's batch format",
                                          [kept](const Invocation& invocation) {
                                            kept->serve.model = invocation.model;
                                            kept->serve.version = DSV4_VERSION;
                                            return RunBatchCommand(*kept);
                                          });
  ServeOptions& serve = options.serve;
  // The runner asks no more than it has in flight.
  serve.max_waiting = int64_t{1} << 20;
  serve.first_token_seconds = 0.0;
  serve.max_gap_seconds = 0.0;
  batch.add_option("IN", options.input, "A request a line: custom_id, method, url, body")->required();
  batch
      .add_option("OUT", options.output,
                  "An answer a line, as they come; a run that was ended goes on behind what is there")
      ->required();
  batch.add_option("--in-flight", options.in_flight, "Requests at one time (0: twice the engine's places)")
      ->check(NonNegative(1 << 20))
      ->capture_default_str();
  batch.add_option("--name", serve.name, "Of the model (default: its directory's)");
  batch
      .add_option("--alias", serve.aliases, "A further name that requests may use (*: any); may be repeated")
      ->allow_extra_args(false);
  batch
      .add_option("-c,--context", serve.context,
                  "Tokens of prompt and answer together (0: as many as the model knows)")
      ->check(NonNegative(1 << 30))
      ->capture_default_str();
  batch
      .add_option_function<int64_t>(
          "--max-sequences", [&serve](const int64_t& value) { serve.max_sequences = value; },
          "Answers at one time (default: 64 on the host, what memory has room for on a GPU)")
      ->check(Positive(1 << 30));
  batch.add_option("--state-mib", serve.state_mib, "Memory of running sequences on each rank (0: no limit)")
      ->check(NonNegative(1 << 30))
      ->capture_default_str();
  batch
      .add_option_function<int64_t>(
          "--prefix-cache-mib", [&serve](const int64_t& value) { serve.prefix_cache_mib = value; },
          "Memory of states kept for reuse on each rank (0: none are)")
      ->check(NonNegative(1 << 30));
  batch.add_option("--speculation", serve.speculation, kSpeculationHelp)->capture_default_str();
  batch
      .add_option("--thinking-mode", serve.thinking_mode,
                  "Of requests that do not say: reason before answering, or answer at once")
      ->check(CLI::IsMember({"thinking", "chat"}))
      ->capture_default_str();
  batch.add_flag("--json", options.json, "One JSON document on stdout");
  AddRankFlags(batch, commands.model());
}

}  // namespace dsv4::apps
