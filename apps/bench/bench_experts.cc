// Bytes and bounds of a decode step with cached and host experts.
#include "apps/bench/bench_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/checkpoint/resolved_checkpoint.h"
#include "model/placement/expert_draws.h"

namespace dsv4::apps {
namespace {

// Number of a layer's experts that a step reads, of so many.
double Chosen(const BenchExperts& e, int64_t num_experts, int64_t batch) {
  const double missed = 1.0 - static_cast<double>(e.top_k) / static_cast<double>(e.split.total());
  return static_cast<double>(num_experts) * (1.0 - std::pow(missed, static_cast<double>(batch)));
}

double BytesOf(const BenchExperts& e, int64_t num_experts, int64_t batch) {
  return static_cast<double>(e.num_layers) * e.expert_bytes * Chosen(e, num_experts, batch);
}

}  // namespace

double BenchExperts::MissShare() const {
  if (split.cached == 0) return 0;
  return 1.0 - static_cast<double>(split.slots) / static_cast<double>(split.cached * layers_here);
}

double BenchExperts::HostBytes(int64_t batch) const { return BytesOf(*this, split.host, batch); }
double BenchExperts::CachedBytes(int64_t batch) const { return BytesOf(*this, split.cached, batch); }
double BenchExperts::AllBytes(int64_t batch) const { return BytesOf(*this, split.total(), batch); }

double BenchExperts::BoundSeconds(double bytes, int64_t batch, double gpu_bandwidth,
                                  double miss_share) const {
  const double rest = std::max(0.0, bytes - AllBytes(batch));
  return rest / gpu_bandwidth +
         static_cast<double>(num_layers) * LayerSeconds(batch, gpu_bandwidth, miss_share);
}

double BenchExperts::LayerSeconds(int64_t batch, double gpu_bandwidth, double miss_share) const {
  return model::MeanSlowestTier({.num_experts = split.total(),
                                 .top_k = top_k,
                                 .batch = batch,
                                 .host = split.host,
                                 .cached = split.cached,
                                 .miss_share = miss_share},
                                {.host = split.host > 0 ? expert_bytes / rates.host_beside : 0,
                                 .link = split.cached > 0 ? expert_bytes / rates.link_beside : 0,
                                 .device = expert_bytes / gpu_bandwidth});
}

Result<BenchExperts> MeasureExperts(const ModelFlags& flags, const model::Model& model,
                                    const io::Checkpoint& checkpoint, const ops::Backend& device) {
  const model::ModelConfig& config = model.config();
  const int64_t num_layers = model.num_layers();
  DSV4_ASSIGN_OR_RETURN(const model::ResolvedCheckpoint resolved,
                        model::ResolveCheckpoint(checkpoint, config));
  BenchExperts experts{.split = model.options().experts,
                       .top_k = config.num_experts_per_tok,
                       .num_layers = num_layers,
                       .layers_here = model.place().layers.size()};
  int64_t num_bytes = 0;
  int64_t count = 0;
  for (int64_t i = 0; i < num_layers; ++i) {
    for (const model::ResolvedExpert& expert : resolved.layers[static_cast<size_t>(i)].experts) {
      num_bytes += expert.w1.num_bytes() + expert.w2.num_bytes() + expert.w3.num_bytes();
      ++count;
    }
  }
  experts.expert_bytes = static_cast<double>(num_bytes) / static_cast<double>(std::max<int64_t>(count, 1));
  DSV4_ASSIGN_OR_RETURN(experts.rates,
                        MeasureExpertRates(flags, device, resolved.layers[0].experts[0].w1.format,
                                           config.hidden_size, experts.split));
  return experts;
}

std::string ExpertsText(const BenchExperts& experts) {
  const model::ExpertSplit& split = experts.split;
  std::string text = fmt::format(
      "experts  {} of a layer{}; a token reads {:.1f} MB of them in all", model::ToString(split),
      experts.Stages() > 1 ? " on rank 0, which stands for all stages" : "", experts.AllBytes(1) / 1e6);
  if (split.cached > 0) text += fmt::format(", {:.1f} MB of cached ones", experts.CachedBytes(1) / 1e6);
  if (split.host > 0) text += fmt::format(", {:.1f} MB on the host", experts.HostBytes(1) / 1e6);
  text += ", if it chooses all equally often\n";
  const bool both = split.cached > 0 && split.host > 0;
  const auto rate = [&](const char* what, double alone, double beside) {
    text += fmt::format("experts  {} {:.1f} GB/s", what, alone / 1e9);
    text += both ? fmt::format(", {:.1f} while both do\n", beside / 1e9) : "\n";
  };
  if (split.host > 0) rate("the host's kernels read", experts.rates.host, experts.rates.host_beside);
  if (split.cached > 0) rate("the link to the GPU brings", experts.rates.link, experts.rates.link_beside);
  return text;
}

}  // namespace dsv4::apps
