// A call of attention_part without the sequences (sequence_table.h).
#pragma once

#include <cstdint>

namespace dsv4::backend::cuda {

struct PartParams {
  const void* q;
  float* part;
  // With a list: rows of the chosen entries that are here, ascending, [num_tokens, top_k], and how many; else
  // null.
  const int32_t* rows;
  const int32_t* num_rows;
  int64_t top_k;
  int64_t window_size;
  int64_t ratio;
  int64_t shard_index;
  int64_t shard_count;
  int64_t num_tokens;
  float softmax_scale;
  int num_heads;
  int head_dim;
};

}  // namespace dsv4::backend::cuda
