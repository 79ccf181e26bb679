// hc_pre in two launches, of whatever hc_cluster and hc_token_tiles do not take, and hc_head: dot products,
// then the mix of the streams.
#pragma once

#include "backend/cuda/kernels/hyper_connection/hc_dots.h"
#include "backend/cuda/lowering/work/hyper_connection.h"
#include "ops/hyper_connection.h"

namespace dsv4::backend::cuda {

class LaunchContext;

// The mix of any number of tokens, and what hc_head makes of its dot products, or of given weights without
// any.
void LaunchHcMix(LaunchContext& context, const ops::HcPreArgs& args, const HcPreParams& params);
void LaunchHcHead(LaunchContext& context, const ops::HcHeadArgs& args, const HcDots& dots);

}  // namespace dsv4::backend::cuda
