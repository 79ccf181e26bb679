// attention for many tokens and the release's head width, on tensor cores: a block takes 64 heads of a token.
#pragma once

#include "backend/cuda/lowering/work/attention_params.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {

Status HopperTwoPass(LaunchContext& context, const SequenceTable& table, const AttentionParams& params);

}  // namespace dsv4::backend::cuda
