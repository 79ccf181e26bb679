// Hyper-connections of many tokens with four streams of bf16, apart from hc_pre's dot products. The bits are
// those of hyper_connection.cu and hc_post.cu, whose kernels for any number of tokens wait for conversions to
// double where these wait for memory.
#pragma once

#include <cstdint>

#include "backend/cuda/lowering/work/hyper_connection.h"
#include "backend/cuda/runtime/launch_context.h"
#include "ops/hyper_connection.h"

namespace dsv4::backend::cuda {

void LaunchManyMixes(LaunchContext& context, const ops::HcPreArgs& args, const HcPreParams& params,
                     double* pre);

// hc_post, with moe_combine in front of it unless `routed` is null: it gives y = shared (null: 0) + routed.
struct ManyPosts {
  uint16_t* y;
  const float* routed;
  const uint16_t* shared;
  const uint16_t* residual;
  uint16_t* out;  // May be residual.
  const float* post;
  const float* comb;
  int64_t num_tokens;
  int64_t dim;  // A multiple of eight; all of it aligned to 16 bytes.
};
void LaunchManyPosts(LaunchContext& context, const ManyPosts& posts);

}  // namespace dsv4::backend::cuda
