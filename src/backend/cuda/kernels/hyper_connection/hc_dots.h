// The dot products of hc_pre and hc_head, where a launch of theirs has nothing else to do.
#pragma once

#include "backend/cuda/lowering/select/hyper_connection.h"
#include "tensor/tensor.h"

namespace dsv4::backend::cuda {

class LaunchContext;

// Partial dot products, [num_tokens, num_rows + 1, num_parts], and four numbers a token behind them.
struct HcDots {
  float* data;
  int num_parts;
  float* pre;
};
void LaunchHcDots(LaunchContext& context, HcDotsPath kernel, const TensorView& streams, const TensorView& fn,
                  const HcDots& to);

}  // namespace dsv4::backend::cuda
