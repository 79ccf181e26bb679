// engram_mix.
#pragma once

#include "backend/cuda/runtime/launch_context.h"
#include "ops/engram_mix.h"

namespace dsv4::backend::cuda {

// At least one token.
void LaunchEngramMix(LaunchContext& context, const ops::EngramMixArgs& args);

}  // namespace dsv4::backend::cuda
