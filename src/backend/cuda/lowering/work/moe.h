// Work of mixture-of-experts ops, as they record it and as kernels are told it.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace dsv4::backend::cuda {

// swiglu: `count` elements in rows of `width`.
struct SwigluWork {
  const void* gate;
  const void* up;
  const float* row_weights;  // Null: 1.
  void* y;                   // May be gate or up.
  int64_t count;
  int64_t width;
  float limit;
  DType dtype;
};

struct RouterParams {
  const float* logits;
  const float* bias;
  const void* hash_table;
  bool hash_is_i64;
  int64_t vocab_size;
  const int32_t* token_ids;
  int32_t* indices;
  float* weights;
  int num_experts;
  int top_k;
  float route_scale;
  float temperature;
  float sum_eps;
  bool normalise;
};
// router, of so many rows of logits.
struct RouterWork {
  RouterParams params;
  int64_t num_tokens;
};

}  // namespace dsv4::backend::cuda
