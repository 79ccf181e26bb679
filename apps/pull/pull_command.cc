// `dsv4 pull`: plan, download with progress, and exit codes.
#include "apps/pull/pull_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "apps/shared/choose_backend.h"
#include "apps/shared/model_flags.h"
#include "apps/terminal/readable.h"
#include "apps/terminal/terminal.h"
#include "backend/cuda/gpu_survey.h"
#include "base/error_output.h"
#include "base/json.h"
#include "base/read_file.h"
#include "base/text.h"
#include "hub/pull.h"
#include "model/arch/architecture.h"
#include "model/config/config.h"

namespace dsv4::apps {
namespace {

int ExitCodeOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kNotFound:
    case StatusCode::kDataLoss:
    case StatusCode::kUnimplemented:  // Another model than dsv4 runs.
      return kExitBadInput;
    default:
      return kExitRunFailed;
  }
}

// Says what will come, and refuses what does not run.
Status CheckPlan(const PullCommandOptions& options, const hub::Reference& reference,
                 const hub::PullPlan& plan) {
  if (plan.config.has_value() && !options.any_model) {
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::string text, ReadFile(plan.config->string(), FileKind::kRegular));
    const Result<Json> json = ParseJson(text, "config.json");
    // A config that names its model, and another one than ours.
    if (json && json->is_object() && json->contains("model_type")) {
      if (const auto config = model::ParseModelConfig(text, "config.json"); !config) {
        return {StatusCode::kUnimplemented,
                fmt::format("{}; nothing more was fetched (--any-model fetches it all the same)",
                            config.error().message())};
      }
    }
  }
  if (options.quiet || (plan.bytes_to_come == 0 && !options.check_only)) return {};
  PrintError(
      "{}: {} in {}, {} to come{}\n", reference.ToString(), ReadableBytes(plan.num_bytes),
      Counted(plan.num_files, "file"), ReadableBytes(plan.bytes_to_come),
      plan.bytes_free >= 0 ? fmt::format(", {} free on the disk", ReadableBytes(plan.bytes_free)) : "");
  if (plan.weight_bytes > 0)
    PrintError("On this machine: {}\n", WhereItRuns(plan.weight_bytes, backend::SurveyGpus()));
  return {};
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
  bool checked = false;
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
            std::string text = fmt::format("{} of {}", ReadableBytes(progress.bytes_done),
                                           ReadableBytes(progress.bytes_total));
            if (elapsed() > 1 && rate > 0)
              text += fmt::format(", {}/s", ReadableBytes(static_cast<int64_t>(rate)));
            bar.Update(progress.bytes_done, progress.bytes_total, text);
          },
      .cancelled =
          [&] {
            if (InterruptScope::Take()) interrupted = true;
            return interrupted;
          },
      .check =
          [&](const hub::PullPlan& plan) {
            bar.Hide();
            Status status = CheckPlan(options, *reference, plan);
            checked = status.ok() && options.check_only;
            return checked ? Cancelled("pull: only checked") : status;
          }};
  const Result<hub::PullResult> result = hub::Pull(pull);
  bar.Clear();
  if (!result) {
    if (checked) return kExitOk;
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
    PrintError("{}: commit {}, {}, {}; {} fetched in {}, every digest right\n", reference->ToString(),
               result->commit.substr(0, 12), Counted(result->num_files, "file"),
               ReadableBytes(result->num_bytes), ReadableBytes(result->bytes_fetched),
               ShortDuration(elapsed()));
    PrintError("It runs by its name: dsv4 run -m {}\n", reference->ToString());
  }
  fmt::print("{}\n", result->snapshot.string());
  return kExitOk;
}

}  // namespace dsv4::apps
