// Bound of a decode step whose routed experts are not all resident (docs/expert-tiers.md), measured.
#pragma once

#include <cstdint>
#include <string>

#include "apps/shared/expert_rates.h"
#include "apps/shared/model_flags.h"
#include "io/checkpoint.h"
#include "model/runtime/model.h"

namespace dsv4::apps {

struct BenchExperts {
  model::ExpertSplit split;
  int64_t top_k = 0;
  int64_t num_layers = 0;
  int64_t layers_here =
      0;  // Layers of them that are this rank's, whose split this is; what it counts stands for the other stages.
  double expert_bytes = 0;  // Bytes of one expert, the mean over all.
  ExpertRates rates;

  // For what rank 0 counts of all stages.
  double Stages() const { return static_cast<double>(num_layers) / static_cast<double>(layers_here); }
  // Share of chosen cached experts that there is no room for, if all are chosen equally often.
  double MissShare() const;
  // Bytes of experts that a step of so many sequences reads where all are chosen equally often. They are
  // given for experts of the host, for cached ones, and for all.
  double HostBytes(int64_t batch) const;
  double CachedBytes(int64_t batch) const;
  double AllBytes(int64_t batch) const;
  // The least time of a step that reads `bytes`, these experts among them, on a GPU of that bandwidth. A
  // `miss_share` of the cached ones is brought over the link. In each layer host, link and GPU read experts
  // side by side, as choices fall on them. The rest comes before or after.
  double BoundSeconds(double bytes, int64_t batch, double gpu_bandwidth, double miss_share) const;
  // Seconds for the experts of a layer of it.
  double LayerSeconds(int64_t batch, double gpu_bandwidth, double miss_share) const;
};

// Figures of a model that runs on `device`.
Result<BenchExperts> MeasureExperts(const ModelFlags& flags, const model::Model& model,
                                    const io::Checkpoint& checkpoint, const ops::Backend& device);

// Lines that say what was measured.
std::string ExpertsText(const BenchExperts& experts);

}  // namespace dsv4::apps
