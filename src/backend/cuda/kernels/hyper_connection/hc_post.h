// hc_post: new streams from the old ones and what the sub-layer gives.
#pragma once

#include "backend/cuda/lowering/work/hyper_connection.h"
#include "ops/hyper_connection.h"

namespace dsv4::backend::cuda {

class LaunchContext;

// Launch for four streams, with moe_combine or the sum over ranks in front of it where `post` has them.
void LaunchHcPost(LaunchContext& context, const HcPostBefore& post, DType dtype);
// Launch for any number of streams.
void LaunchHcPostOfAny(LaunchContext& context, const ops::HcPostArgs& args);

}  // namespace dsv4::backend::cuda
