// `dsv4 pull` on the command line.
#include <CLI/CLI.hpp>
#include <memory>

#include "apps/command_line/command.h"
#include "apps/command_line/shared_flags.h"
#include "apps/pull/models_command.h"
#include "apps/pull/ps_command.h"
#include "apps/pull/pull_command.h"

namespace dsv4::apps {

void RegisterPull(Commands& commands) {
  const auto kept = std::make_shared<PullCommandOptions>();
  PullCommandOptions& options = *kept;
  CLI::App& pull = commands.AddWithoutModel("pull", "Fetch a checkpoint from a hub, by its name",
                                            [kept](const Invocation&) { return RunPullCommand(*kept); });
  pull.add_option("NAME", options.reference,
                  "OWNER/NAME, OWNER/NAME@REVISION, or the address of its page on the hub")
      ->required();
  pull.add_flag("--check", options.check_only,
                "Say what would come and whether it runs here, and fetch no weights");
  pull.add_flag("--any-model", options.any_model, "Fetch a model that dsv4 does not run, too");
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
      ->check(Between(0, 30))
      ->capture_default_str();
  pull.add_option("--stall", options.stall_seconds, "Seconds below 1 KiB/s that end a transfer")
      ->check(CLI::Range(1.0, 3600.0))
      ->capture_default_str();
  pull.add_flag("-q,--quiet", options.quiet, "No progress; the folder alone on stdout");
  pull.add_flag("--json", options.json, "One JSON document on stdout");
}

void RegisterModels(Commands& commands) {
  const auto listed = std::make_shared<ListOptions>();
  CLI::App& list = commands.AddWithoutModel("list", "The models that were pulled, and their sizes",
                                            [listed](const Invocation&) { return RunListCommand(*listed); });
  list.add_flag("-q,--quiet", listed->names_only, "Only the names of models that dsv4 runs, one a line");
  list.add_flag("--json", listed->json, "One JSON document on stdout");

  const auto shown = std::make_shared<ShowOptions>();
  CLI::App& show = commands.AddWithoutModel("show", "What a pulled model is, and where it lies",
                                            [shown](const Invocation&) { return RunShowCommand(*shown); });
  show.add_option("NAME", shown->name, "OWNER/NAME[@REVISION], or NAME where one owner has it")->required();
  show.add_flag("--json", shown->json, "One JSON document on stdout");

  const auto removed = std::make_shared<RemoveOptions>();
  CLI::App& rm =
      commands.AddWithoutModel("rm", "Remove pulled models from the disk",
                               [removed](const Invocation&) { return RunRemoveCommand(*removed); });
  rm.add_option("NAME", removed->names, "OWNER/NAME[@REVISION], or NAME where one owner has it; several")
      ->required();
  rm.add_flag("--all", removed->all_revisions, "Every revision of it, not the named one alone");
  rm.add_flag("-n,--dry-run", removed->dry_run, "Say what would go, and remove nothing");

  const auto json = std::make_shared<bool>(false);
  CLI::App& ps = commands.AddWithoutModel("ps", "Servers and other dsv4 processes that hold a model",
                                          [json](const Invocation&) { return RunPsCommand(*json); });
  ps.add_flag("--json", *json, "One JSON document on stdout");
}

}  // namespace dsv4::apps
