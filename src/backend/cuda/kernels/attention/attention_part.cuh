// attention_part as its kernels see it.
#pragma once

#include "backend/cuda/kernels/attention/attention_keys.cuh"
#include "backend/cuda/kernels/attention/attention_part.h"

namespace dsv4::backend::cuda {

__device__ inline int64_t RowsHere(int64_t num_entries, int64_t shard_index, int64_t shard_count) {
  return (num_entries + shard_count - 1 - shard_index) / shard_count;
}

// The keys of a part that a query sees.
struct PartKeys : KeyRows {
  __device__ PartKeys(const SequenceTable& table, const PartParams& p, int64_t token)
      : KeyRows(table, token) {
    const int64_t end = sequence.first_position + token - sequence.token_begin + 1;
    window_begin = end > p.window_size ? end - p.window_size : 0;
    num_window = p.window_size > 0 ? end - window_begin : 0;
    rows = p.rows == nullptr ? nullptr : p.rows + token * p.top_k;
    int64_t num_rows = 0;
    if (rows != nullptr) {
      num_rows = p.num_rows[token];
    } else if (p.ratio > 0) {
      num_rows = RowsHere(end / p.ratio, p.shard_index, p.shard_count);
    }
    num_keys = num_window + num_rows;
  }
};

}  // namespace dsv4::backend::cuda
