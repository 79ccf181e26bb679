#include "apps/inspect/inspect_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "apps/inspect/expert_plan.h"
#include "apps/inspect/inspect_report.h"
#include "apps/shared/expert_flags.h"
#include "apps/shared/load_bar.h"

namespace dsv4::apps {

int RunInspectCommand(const InspectOptions& options) {
  const Result<ModelSource> source = ModelSource::Find(options.model);
  if (!source) return Fail(source.error(), kExitBadInput);
  const Result<model::Placement> placement =
      model::ParsePlacement(options.model.placement, std::max(options.model.num_ranks, 1));
  if (!placement) return Fail(placement.error(), kExitBadUsage);
  if (const Status status = CheckExpertFlags(options.model); !status.ok()) return Fail(status, kExitBadUsage);
  LoadBar bar;
  const InspectRequest request = {
      .source = *source,
      .numerics = options.model.numerics == "plain" ? model::Numerics::kPlain : model::Numerics::kRelease,
      .cache_rows = CacheRowsOf(options.model),
      .max_layers = source->synthetic() ? 0 : options.model.max_layers,
      .pass_tokens = PassTokens(options.model),
      .context = options.context,
      .batch = options.batch,
      .placement = *placement,
      .rank_kind = {.memory = options.rank_memory * 1e9,
                    .bytes_per_second = options.rank_bandwidth * 1e9,
                    .seconds_per_exchange = options.rank_wait * 1e-6},
      .progress = bar.callback()};
  const Result<InspectReport> report = Inspect(request);
  bar.Clear();
  if (!report) return Fail(report.error(), LoadExitCode(report.error()));
  std::optional<ExpertPlan> experts;
  if (!options.model.experts.empty()) {
    Result<ExpertPlan> plan = PlanExperts(options.model, *source, {options.batch, options.context});
    if (!plan) return Fail(plan.error(), LoadExitCode(plan.error()));
    experts = std::move(*plan);
  }
  if (options.json) {
    Json json = ToJson(*report);
    if (experts) json["experts"] = ToJson(*experts);
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print("{}\n{}", ToText(*report), experts ? ToText(*experts) : std::string());
  }
  return kExitOk;
}

}  // namespace dsv4::apps
