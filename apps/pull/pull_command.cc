#include "apps/pull/pull_command.h"

#include <fmt/format.h>

#include <chrono>

#include "apps/shared/model_flags.h"
#include "apps/terminal/terminal.h"
#include "base/error_output.h"
#include "base/json.h"
#include "hub/pull.h"

namespace dsv4::apps {
namespace {

std::string Size(double bytes) {
  if (bytes < 1e6) return fmt::format("{:.0f} kB", bytes / 1e3);
  return bytes < 1e9 ? fmt::format("{:.1f} MB", bytes / 1e6) : fmt::format("{:.1f} GB", bytes / 1e9);
}

std::string Duration(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", seconds);
  return seconds < 5400 ? fmt::format("{:.0f} min", seconds / 60) : fmt::format("{:.1f} h", seconds / 3600);
}

int ExitCodeOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kNotFound:
    case StatusCode::kDataLoss:
      return kExitBadInput;
    default:
      return kExitRunFailed;
  }
}

}  // namespace

int RunPullCommand(const PullCommandOptions& options) {
  const Result<hub::Reference> reference = hub::ParseReference(options.reference);
  if (!reference) return Fail(reference.error(), kExitBadUsage);

  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const InterruptScope interrupts;
  bool interrupted = false;
  ProgressBar bar("fetching");
  const hub::PullOptions pull{
      .reference = *reference,
      .settings = hub::SettingsFromEnvironment(),
      .all_files = options.all_files,
      .verify = options.verify,
      .num_transfers = options.num_transfers,
      .num_retries = options.num_retries,
      .retry_seconds = options.retry_seconds,
      .stall_seconds = options.stall_seconds,
      .progress =
          [&](const hub::PullProgress& progress) {
            if (options.quiet) return;
            const double rate = static_cast<double>(progress.bytes_fetched) / std::max(elapsed(), 0.001);
            std::string text = fmt::format("{} of {}", Size(static_cast<double>(progress.bytes_done)),
                                           Size(static_cast<double>(progress.bytes_total)));
            if (elapsed() > 1 && rate > 0) {
              const auto left = static_cast<double>(progress.bytes_total - progress.bytes_done);
              text += fmt::format(", {}/s, {} left", Size(rate), Duration(left / rate));
            }
            bar.Update(progress.bytes_done, progress.bytes_total, text);
          },
      .cancelled =
          [&] {
            if (InterruptScope::Take()) interrupted = true;
            return interrupted;
          }};
  const Result<hub::PullResult> result = hub::Pull(pull);
  bar.Clear();
  if (!result) {
    return Fail(result.error().WithContext(reference->ToString()), ExitCodeOf(result.error()));
  }
  if (options.json) {
    const Json json = {{"path", result->snapshot.string()},      {"commit", result->commit},
                       {"num_files", result->num_files},         {"num_bytes", result->num_bytes},
                       {"bytes_fetched", result->bytes_fetched}, {"seconds", elapsed()}};
    fmt::print("{}\n", json.dump());
    return kExitOk;
  }
  if (!options.quiet) {
    PrintError("{}: commit {}, {} files, {}; {} fetched in {}, every digest right\n", reference->ToString(),
               result->commit.substr(0, 12), result->num_files, Size(static_cast<double>(result->num_bytes)),
               Size(static_cast<double>(result->bytes_fetched)), Duration(elapsed()));
    PrintError("It runs by its name: dsv4 run -m {}\n", reference->ToString());
  }
  fmt::print("{}\n", result->snapshot.string());
  return kExitOk;
}

}  // namespace dsv4::apps
