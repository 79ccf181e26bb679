// router, and a swiglu beside it.
#pragma once

#include "backend/cuda/lowering/work/moe.h"

namespace dsv4::backend::cuda {

class LaunchContext;

// `swiglu`: null, or what other blocks of the launch do.
void LaunchRouter(LaunchContext& context, const RouterWork& router, const SwigluWork* swiglu);

}  // namespace dsv4::backend::cuda
