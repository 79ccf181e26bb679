// How fast experts come from where they are: measured at start, in less than two seconds.
#pragma once

#include <cstdint>

#include "apps/shared/model_flags.h"
#include "formats/weight.h"
#include "model/placement/expert_split.h"

namespace dsv4::apps {

// Bytes a second of experts; 0 where the split has none that would need it.
struct ExpertRates {
  double host = 0;  // The host's kernels, one token of op `linear` on 256 MB in the format of the experts.
  double link = 0;  // From pinned memory to the GPU.
  double host_beside = 0;  // The same while both run: they read the same memory.
  double link_beside = 0;
  double host_prompt = 0;  // The host's kernels with many tokens: bytes count once a token.
};

// `device`: the CUDA backend. The host's kernels run on as many threads as the flags give the experts.
Result<ExpertRates> MeasureExpertRates(const ModelFlags& flags, const ops::Backend& device,
                                       WeightFormat format, int64_t cols, const model::ExpertSplit& split);

// Bytes a second that the device reads and writes where it copies within its memory, of which a gigabyte is
// free.
Result<double> MeasureDeviceRate(const ops::Backend& device);

}  // namespace dsv4::apps
