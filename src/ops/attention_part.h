// AttentionPart: attention over a part of the keys of each query. The part is the window, or the entries on
// this rank, or both. It is left open, so that MergeAttention can put parts together.
//   q          [num_tokens, num_heads, head_dim]      bf16 or f32, contiguous
//   selected   [num_tokens, top_k]                    as in Attention, of all ranks' entries; null: every visible entry
//   part       [num_tokens, num_heads, head_dim + 2]  f32, contiguous, no overlap with q
//   window_size  0: the window is not in this part, and `window` of the sequences is unused; otherwise as in Attention
//   ratio        0: no entries are in this part, and `entries` is unused; otherwise as in Attention
//   shard        which of a sequence's entries are rows of `entries`
// A row of `part` has for the keys t of this part, without a sink and with rounding r as in Attention:
//   head_dim values  sum_t r(exp(l_t - M)) k_t; 0 without any key
//   then             M = max_t l_t; -infinity without any key
//   then             sum_t exp(l_t - M); 0 without any key
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
