// Splits of a model's routed experts on GPUs of several sizes, by arithmetic from rates that are assumed: no
// GPU is asked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/shared/model_flags.h"
#include "apps/shared/model_source.h"
#include "base/json.h"
#include "model/placement/expert_choice.h"
#include "model/planning/memory_plan.h"

namespace dsv4::apps {

// GB/s.
struct AssumedRates {
  double gpu = 3000;
  double link = 52;
  double host = 97;
};

struct GpuSize {
  double gigabytes = 0;  // Size of the GPU's memory.
  // Without: why nothing fits.
  std::string missing;
  model::ExpertSplit split;
  int64_t longest_context = 0;  // Context of the sequences that were asked for.
  // Times of a token of one sequence, seconds by bytes alone. `rest` is all but routed experts, on the GPU.
  // Then experts of the GPU, of the link and of the host run side by side. `both` is link and host together,
  // by how choices fall on layers.
  double rest = 0;
  double gpu = 0;
  model::ExpertTimes experts;

  double Seconds() const;
  const char* Bound() const;  // "GPU", "link" or "host".
};

struct GpuSizes {
  AssumedRates rates;
  int64_t context = 0;  // At the end of which the token is.
  std::vector<GpuSize> steps;
};

// The errors of model::PlanMemory.
Result<GpuSizes> PlanGpuSizes(const ModelFlags& flags, const ModelSource& source,
                              const model::MemoryRequest& request, const std::vector<double>& gigabytes,
                              const AssumedRates& rates);

Json ToJson(const GpuSizes& sizes);
std::string ToText(const GpuSizes& sizes);

}  // namespace dsv4::apps
