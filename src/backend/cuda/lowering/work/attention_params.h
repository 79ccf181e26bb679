// An attention call as its kernels see it, without the sequences (sequence_table.h).
#pragma once

#include <cstdint>

#include "backend/cuda/device/numeric/sequence_table.h"

namespace dsv4::backend::cuda {

struct AttentionParams {
  const void* q;
  const float* sink;
  void* o;
  // With a list: the chosen entries of each token in ascending order, [num_tokens, top_k], and how many; else
  // null. A list of as many as are visible, up to top_k, needs no numbers.
  const int32_t* entries;
  const int32_t* num_entries;
  int64_t top_k;
  int64_t window_size;
  int64_t ratio;
  float softmax_scale;
  int num_tokens;
  int num_heads;
  int head_dim;
};

}  // namespace dsv4::backend::cuda
