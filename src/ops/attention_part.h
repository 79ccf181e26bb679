// AttentionPart: attention over a part of what each query sees, left open so that MergeAttention can put parts together: of the
// window, or of the entries that lie on this rank, or both.
//   q          [num_tokens, num_heads, head_dim]      bf16 or f32, contiguous
//   selected   [num_tokens, top_k]                    as in Attention, of all ranks' entries; null: every visible entry
//   part       [num_tokens, num_heads, head_dim + 2]  f32, contiguous, no overlap with q: of the keys t of this part
//                head_dim values  sum_t r(exp(l_t - M)) k_t
//                then             M = max_t l_t
//                then             sum_t exp(l_t - M)
//              with r as in Attention; without any key 0, -infinity and 0. No sink.
//   window_size  0: the window is not in this part, and `window` of the sequences is unused; otherwise as in Attention
//   ratio        0: no entries are in this part, and `entries` is unused; otherwise as in Attention
//   shard        which of a sequence's entries are rows of `entries`
// Sums in fp32 or wider. A query's numbers depend on what it sees alone.
// Errors: those of Attention; InvalidArgument for a shard that there cannot be. num_tokens == 0 does nothing.
#pragma once

#include "ops/attention.h"

namespace dsv4::ops {

struct AttentionPartArgs {
  TensorView q;
  TensorView selected;  // May be null.
  TensorView part;
  float softmax_scale = 0.0F;
  int64_t window_size = 0;
  int64_t ratio = 0;
  EntryShard shard;
  std::span<const AttentionSequence> sequences;
  DSV4_OPERANDS(q, selected, part, sequences)
};

Status Validate(const AttentionPartArgs& args);

}  // namespace dsv4::ops
