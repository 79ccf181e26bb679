// Op attention for many tokens of up to 640 visible keys and the release's head width, on tensor cores.
// Logits are computed once and stay in registers until the largest is known.
#pragma once

#include "backend/cuda/lowering/work/attention_params.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {

Status HopperInRegisters(LaunchContext& context, const SequenceTable& table, const AttentionParams& params);

}  // namespace dsv4::backend::cuda
