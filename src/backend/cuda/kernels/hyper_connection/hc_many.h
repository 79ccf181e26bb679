// The mix of hc_pre of many tokens with four streams of bf16, with the bits of hyper_connection.cu.
#pragma once

#include "backend/cuda/lowering/work/hyper_connection.h"
#include "backend/cuda/runtime/launch_context.h"
#include "ops/hyper_connection.h"

namespace dsv4::backend::cuda {

// pre: memory for the weights of all tokens' streams.
void LaunchManyMixes(LaunchContext& context, const ops::HcPreArgs& args, const HcPreParams& params,
                     float* pre);

}  // namespace dsv4::backend::cuda
