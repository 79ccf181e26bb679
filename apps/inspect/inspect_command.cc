// `dsv4 inspect`: the report of a checkpoint, from disk or from a synthetic shape.
#include "apps/inspect/inspect_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "apps/inspect/expert_plan.h"
#include "apps/inspect/inspect_report.h"
#include "apps/shared/disk_tier.h"
#include "apps/shared/expert_flags.h"
#include "apps/terminal/load_bar.h"

namespace dsv4::apps {

namespace {

// Plan of a model that does not fit, where it would run on the host.
Result<DiskTier> FromDisk(const InspectReport& report) {
  const MachineFitRequest& request = report.fit_request;
  DSV4_ASSIGN_OR_RETURN(DiskTier tier,
                        PlanDiskTier(request.config, request.checkpoint, request.options,
                                     {request.batch, request.context}, report.fit.memory.available));
  DSV4_ASSIGN_OR_RETURN(tier.disk,
                        io::MeasureDiskRate(request.checkpoint->files(), static_cast<size_t>(tier.piece)));
  return tier;
}

}  // namespace

int RunInspectCommand(const InspectOptions& options) {
  const Result<ModelSource> source = ModelSource::Find(options.model);
  if (!source) return Fail(source.error(), kExitBadInput);
  const Result<model::Placement> placement =
      model::ParsePlacement(options.model.placement, std::max(options.model.num_ranks, 1));
  if (!placement) return Fail(placement.error(), kExitBadUsage);
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
  std::optional<GpuSizes> sizes;
  if (!options.gpu_sizes.empty()) {
    ModelFlags flags = options.model;
    flags.backend = "cuda";
    Result<GpuSizes> planned = PlanGpuSizes(flags, *source, {options.batch, options.context},
                                            options.gpu_sizes, options.assumed_rates);
    if (!planned) return Fail(planned.error(), LoadExitCode(planned.error()));
    sizes = std::move(*planned);
  }
  std::optional<DiskTier> disk;
  if (!report->fit.fits() && !source->synthetic() && options.model.backend != "cuda") {
    Result<DiskTier> planned = FromDisk(*report);
    if (!planned) return Fail(planned.error(), LoadExitCode(planned.error()));
    disk = std::move(*planned);
  }
  if (options.json) {
    Json json = ToJson(*report);
    if (experts) json["experts"] = ToJson(*experts);
    if (sizes) json["gpu_sizes"] = ToJson(*sizes);
    if (disk) {
      json["machine"]["disk"] = {{"experts_bytes", disk->experts},
                                 {"rest_bytes", disk->rest},
                                 {"share_in_memory", disk->ShareInMemory()},
                                 {"bytes_per_second", disk->disk.bytes_per_second},
                                 {"tokens_per_second", disk->TokensPerSecond()}};
    }
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print("{}{}\n{}{}", ToText(*report),
               disk ? fmt::format("  {:<26}{}\n", "from disk", ToText(*disk)) : "",
               experts ? ToText(*experts) : "", sizes ? ToText(*sizes) : "");
  }
  return kExitOk;
}

}  // namespace dsv4::apps
