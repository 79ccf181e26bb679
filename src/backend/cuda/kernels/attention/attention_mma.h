// Attention on tensor cores, for bf16 and the head widths of the release's models.
#pragma once

#include <cstdint>

#include "backend/cuda/lowering/work/attention_params.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {

// max_keys: the most keys that any query of the step may see.
Status AttentionMma(LaunchContext& context, const SequenceTable& table, const AttentionParams& params,
                    int64_t max_keys);

}  // namespace dsv4::backend::cuda
