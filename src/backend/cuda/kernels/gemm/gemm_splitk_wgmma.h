// Ops linear and grouped_linear for 9 to 64 tokens, on Hopper's tensor cores (wgmma), at the speed of reading
// weights. A block keeps a slice of the activations' columns in shared memory and has row tiles of the weight
// go by.
#pragma once

#include <span>

#include "backend/cuda/lowering/work/linear.h"

namespace dsv4::backend::cuda {

class LaunchContext;

// One linear, or up to kMaxFusedMatrices of the same activations (FusionRule::kLinearsSplitK). The first may
// have a mix.
Status LaunchGemmSplitK(LaunchContext& context, std::span<const LinearWork* const> linears);

}  // namespace dsv4::backend::cuda
