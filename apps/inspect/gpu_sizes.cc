// Splits, bounds and contexts for GPUs of given sizes, from assumed rates.
#include "apps/inspect/gpu_sizes.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/inspect/expert_plan.h"
#include "apps/shared/expert_flags.h"
#include "model/checkpoint/resolved_checkpoint.h"
#include "model/planning/forecast.h"

namespace dsv4::apps {
namespace {

// Bytes of experts count once a token; with the many tokens of a prompt the host's kernels read each once for
// several.
constexpr double kPromptReuse = 10;

}  // namespace

double GpuSize::Seconds() const { return rest + std::max(experts.both, gpu); }

const char* GpuSize::Bound() const {
  if (rest + gpu >= std::max(experts.host, experts.link)) return "GPU";
  return experts.host > experts.link ? "host" : "link";
}

Result<GpuSizes> PlanGpuSizes(const ModelFlags& flags, const ModelSource& source,
                              const model::MemoryRequest& request, const std::vector<double>& gigabytes,
                              const AssumedRates& rates) {
  DSV4_ASSIGN_OR_RETURN(const model::ModelConfig config, source.Config());
  DSV4_ASSIGN_OR_RETURN(const auto checkpoint, source.Checkpoint());
  DSV4_ASSIGN_OR_RETURN(const model::ResolvedCheckpoint resolved,
                        model::ResolveCheckpoint(*checkpoint, config));
  model::ModelOptions options = MakeModelOptions(flags);
  if (source.synthetic()) options.max_layers = 0;  // They are made for the first layers only.
  options.experts = {.cached = config.n_routed_experts};
  DSV4_ASSIGN_OR_RETURN(const model::MemoryPlan plan,
                        model::PlanMemory(config, checkpoint, options, request));
  const int64_t all = config.n_routed_experts * plan.num_layers;
  const double chosen = static_cast<double>(config.num_experts_per_tok * plan.num_layers * plan.slot);
  const model::Forecast forecast = model::MakeForecast(resolved, config, model::Placement{},
                                                       {.num_layers = plan.num_layers,
                                                        .context = plan.context,
                                                        .numerics = options.numerics,
                                                        .cache_rows = options.cache_rows});
  GpuSizes sizes{.rates = rates, .context = plan.context};
  const int64_t scratch = ScratchOf(flags, kAssumedScratch);
  for (const double size : gigabytes) {
    GpuSize& step = sizes.steps.emplace_back();
    step.gigabytes = size;
    const int64_t usable = static_cast<int64_t>(size * 1e9) - scratch;
    const int64_t left = usable - plan.total();
    if (left < 0) {
      step.missing = fmt::format("{:.1f} GB are wanted beside the routed experts",
                                 static_cast<double>(plan.total() + scratch) / 1e9);
      continue;
    }
    // Rates of one are taken beside the other too: how much they disturb each other is the machine's to say.
    const model::ExpertCosts costs{.num_layers = plan.num_layers,
                                   .num_experts = config.n_routed_experts,
                                   .top_k = config.num_experts_per_tok,
                                   .expert_bytes = static_cast<double>(plan.slot),
                                   .room = std::min(left / plan.slot, all),
                                   .pinnable = all,
                                   .host = rates.host * 1e9,
                                   .link = rates.link * 1e9,
                                   .host_beside = rates.host * 1e9,
                                   .link_beside = rates.link * 1e9,
                                   .host_prompt = kPromptReuse * rates.host * 1e9,
                                   .chunk_tokens = options.max_chunk_tokens};
    const model::ExpertChoice choice = model::ChooseExperts(costs);
    step.split = choice.split;
    step.experts = choice.times;
    const double on_host =
        static_cast<double>(choice.split.host) / static_cast<double>(config.n_routed_experts);
    step.gpu = chosen * (1 - on_host) / (rates.gpu * 1e9);
    step.rest = std::max(0.0, forecast.read - chosen) / (rates.gpu * 1e9);
    // A server gives up slots for states (SlotTrade).
    const int64_t experts = choice.split.cached > 0 ? std::min(choice.split.cached, choice.split.slots)
                                                    : choice.split.resident * plan.num_layers;
    step.longest_context = model::LongestContext(config, options, plan, usable - experts * plan.slot);
  }
  return sizes;
}

Json ToJson(const GpuSizes& sizes) {
  Json json = {{"computed", true},
               {"context", sizes.context},
               {"rates", {{"gpu", sizes.rates.gpu}, {"link", sizes.rates.link}, {"host", sizes.rates.host}}}};
  json["steps"] = Json::array();
  for (const GpuSize& step : sizes.steps) {
    if (!step.missing.empty()) {
      json["steps"].push_back({{"gpu_memory", step.gigabytes}, {"missing", step.missing}});
      continue;
    }
    json["steps"].push_back({{"gpu_memory", step.gigabytes},
                             {"split", model::ToString(step.split)},
                             {"longest_context", step.longest_context},
                             {"rest_seconds", step.rest},
                             {"gpu_seconds", step.gpu},
                             {"link_seconds", step.experts.link},
                             {"host_seconds", step.experts.host},
                             {"tokens_per_second", 1 / step.Seconds()},
                             {"bound", step.Bound()}});
  }
  return json;
}

std::string ToText(const GpuSizes& sizes) {
  std::string text = fmt::format(
      "\nGPUs of other sizes, computed and not measured: a token of one sequence behind {} others, by bytes "
      "alone, where the GPU reads "
      "{:g} GB/s,\nthe link brings {:g} GB/s and the host's kernels read {:g} GB/s (--gpu-rate, --link-rate, "
      "--host-rate), and all "
      "experts are chosen equally often\n  {:>6}  {:<44}{:>10}{:>10}{:>10}{:>10}{:>9}  {:<7}{:>12}\n",
      sizes.context, sizes.rates.gpu, sizes.rates.link, sizes.rates.host, "GPU", "experts of a layer",
      "the rest", "GPU", "link", "host", "tok/s", "bound", "context");
  for (const GpuSize& step : sizes.steps) {
    if (!step.missing.empty()) {
      text += fmt::format("  {:>3g} GB  does not fit: {}\n", step.gigabytes, step.missing);
      continue;
    }
    text += fmt::format(
        "  {:>3g} GB  {:<44}{:>7.2f} ms{:>7.2f} ms{:>7.2f} ms{:>7.2f} ms{:>9.1f}  {:<7}{:>12}\n",
        step.gigabytes, model::ToString(step.split), step.rest * 1e3, step.gpu * 1e3, step.experts.link * 1e3,
        step.experts.host * 1e3, 1 / step.Seconds(), step.Bound(), step.longest_context);
  }
  return text;
}

}  // namespace dsv4::apps
