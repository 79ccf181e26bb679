// attention_part: its parameters, which rows are here, and its lists.
#pragma once

#include "backend/cuda/kernels/attention/part_params.h"
#include "backend/cuda/lowering/work/over_ranks.h"

namespace dsv4::backend::cuda {

class CudaContext;

__host__ __device__ inline int64_t RowsHere(int64_t num_entries, int64_t shard_index, int64_t shard_count) {
  return (num_entries + shard_count - 1 - shard_index) / shard_count;
}

// The rows that are here of one token's list, and how many (RowsToList).
void LaunchPartRows(CudaContext& context, const SequenceTable& table, const PartParams& params,
                    const RowsToList& list);

}  // namespace dsv4::backend::cuda
