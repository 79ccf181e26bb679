// linear and grouped_linear of a few tokens: kernels made for reading weights (gemv_tiles.cuh).
#pragma once

#include <span>

#include "backend/cuda/lowering/work/linear.h"

namespace dsv4::backend::cuda {

class LaunchContext;

// One linear, or up to kMaxFusedMatrices of the same activations (FusionRule::kLinearsGemv). The first may
// have a mix.
void LaunchGemvStream(LaunchContext& context, std::span<const LinearWork* const> linears);

}  // namespace dsv4::backend::cuda
