// attention of any head width up to kMaxAttentionHeadDim, without tensor cores; and the lists of chosen
// entries, for all its kernels.
#pragma once

#include "backend/cuda/lowering/work/attention_params.h"
#include "tensor/dtype.h"

namespace dsv4::backend::cuda {

class LaunchContext;

// Lists as the op has them, and what attention's kernels read: AttentionParams::entries and num_entries.
struct EntriesToSort {
  const int32_t* selected;  // [num_tokens, top_k], any order, -1: none
  int32_t* entries;         // [num_tokens, top_k]
  int32_t* num_entries;     // [num_tokens]
  int64_t num_tokens;
  int64_t top_k;  // Up to kMaxAttentionList.
  int64_t ratio;
};
void LaunchSortEntries(LaunchContext& context, const SequenceTable& table, const EntriesToSort& lists);

// `dtype`: of queries, rows and output.
void LaunchAttentionOfAny(LaunchContext& context, const SequenceTable& table, const AttentionParams& params,
                          DType dtype);

}  // namespace dsv4::backend::cuda
