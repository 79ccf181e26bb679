// `dsv4 pull` on the command line.
#include <CLI/CLI.hpp>
#include <memory>

#include "apps/command_line/command.h"
#include "apps/command_line/shared_flags.h"
#include "apps/pull/pull_command.h"

namespace dsv4::apps {

void RegisterPull(Commands& commands) {
  const auto kept = std::make_shared<PullCommandOptions>();
  PullCommandOptions& options = *kept;
  CLI::App& pull = commands.AddWithoutModel("pull", "Fetch a checkpoint from a hub, by its name",
                                            [kept](const Invocation&) { return RunPullCommand(*kept); });
  pull.add_option("NAME", options.reference, "OWNER/NAME or OWNER/NAME@REVISION")->required();
  pull.add_flag("--all-files", options.all_files, "What a checkpoint does not need to run, too");
  pull.add_flag("--verify", options.verify, "Hash files again that are there already");
  pull.add_option("--jobs", options.num_transfers, "Files at a time")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  pull.add_option("--retries", options.num_retries, "Failures in a row of a file without a byte more")
      ->check(NonNegative())
      ->capture_default_str();
  pull.add_option("--retry-wait", options.retry_seconds,
                  "Seconds before the first retry; doubled for each more")
      ->check(CLI::Range(0.0, 30.0))
      ->capture_default_str();
  pull.add_option("--stall", options.stall_seconds, "Seconds without a byte that end a transfer")
      ->check(CLI::Range(1.0, 3600.0))
      ->capture_default_str();
  pull.add_flag("-q,--quiet", options.quiet, "No progress; the folder alone on stdout");
  pull.add_flag("--json", options.json, "One JSON document on stdout");
}

}  // namespace dsv4::apps
