// Attention: multi-query attention of every head over one shared row per key (K = V). Keys are the window
// plus compressed entries, with a learned sink.
//   q          [num_tokens, num_heads, head_dim]  bf16 or f32, contiguous
//   sink       [num_heads]                        f32: one more logit without value, not multiplied by softmax_scale
//   selected   [num_tokens, top_k]                i32 entries per query, -1 = none (any order, no repeats);
//              null: every visible entry
//   ordered    whether a query's list has min(top_k, its visible entries) entries in ascending order, then -1. So do
//              those of indexer_select and merge_candidates. A backend may then read it as it is
//   o          [num_tokens, num_heads, head_dim]  dtype of q, contiguous, no overlap with q
//   sequences
//     window   a ring of `head_dim` rows that unpack to the dtype of q. It already holds this step's rows and all
//              rows that the step's queries see. Its capacity is at least
//              min(window_size - 1, first_position) + num_tokens
//     entries  PagedRows of the same width and dtype, unused when ratio == 0
// A packed row is exactly what it unpacks to (formats/cache_rows.h). Whether rows are packed changes no bit
// of o. The query at position p sees window positions max(0, p - window_size + 1) .. p. When ratio > 0 it
// also sees entries [0, floor((p+1)/ratio)), or those of them in `selected`. Others in `selected` are an
// error.
//   l_t = (q . k_t) softmax_scale, M = max_t l_t, Z = sum_t exp(l_t - M) + exp(sink - M)
//   o   = round((sum_t r(exp(l_t - M)) k_t) / Z), where r rounds to the dtype of q
// Sums in fp32 or wider. Rounding points: r inside the value product (not in Z) and the store to o. A kernel
// that works chunk by chunk rounds relative to its running maximum, as the release's does; either is within
// the contract. Sequences own consecutive token ranges that together are all tokens.
// Errors: InvalidArgument if dims, dtypes, ranges or capacities disagree, or an entry of `selected` is not
// visible to its query. The reference names a repeated one too, and one out of order. num_tokens == 0 does nothing.
// Source: release inference code, Attention.forward and sparse_attn (model.md 5.3 and 5.4).
#pragma once

#include <span>

#include "ops/row_store.h"

namespace dsv4::ops {

struct AttentionSequence {
  int64_t token_begin = 0;
  int64_t num_tokens = 0;
  int64_t first_position = 0;
  RingRows window;
  PagedRows entries;
};

struct AttentionArgs {
  TensorView q;
  TensorView sink;
  TensorView selected;  // May be null.
  TensorView o;
  float softmax_scale = 0.0F;
  int64_t window_size = 0;
  int64_t ratio = 0;
  std::span<const AttentionSequence> sequences;
  bool ordered = false;
  DSV4_OPERANDS(q, selected, sink, o, sequences)
};

Status Validate(const AttentionArgs& args);

}  // namespace dsv4::ops
