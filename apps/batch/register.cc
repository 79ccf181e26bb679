// `dsv4 batch` on the command line.
#include <CLI/CLI.hpp>
#include <memory>

#include "apps/batch/batch_command.h"
#include "apps/command_line/command.h"
#include "apps/command_line/shared_flags.h"
#include "apps/serve/serve_flags.h"

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
  batch.add_flag("--json", options.json, "One JSON document on stdout");
  AddServedModelFlags(batch, serve, commands.model());
}

}  // namespace dsv4::apps
