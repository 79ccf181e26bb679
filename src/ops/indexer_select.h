// IndexerSelect: scores the compressed entries that each query may see and keeps the best top_k of them.
//   q          [num_tokens, num_heads, width]  bf16 or f32, contiguous (rotated and rounded as the numerics ask)
//   weights    [num_tokens, num_heads]         dtype of q, already multiplied by width^-0.5 * num_heads^-0.5
//   sequences  keys are PagedRows of `width` that unpack to the dtype of q, exactly. The query at position p sees
//              entries [0, floor((p+1)/ratio))
//   selected   [num_tokens, top_k]             i32: chosen entries in ascending order, then -1
//   within     [num_tokens, blocks]            i32 or null: blocks of `block_size` entries that may be chosen from, ascending, then -1
//   best       [num_tokens, blocks]            i32 or null, not with `within`: the best blocks in ascending order, then -1
// The score[j] is sum_h weights[h] relu(q[h] . key[j]). The top_k highest are chosen, equal scores by lowest
// index, NaN last. A block's score is the highest of its visible entries; the block of the newest visible
// entry is the best of all. Equal blocks go by lowest index. When no more than top_k entries may be chosen
// all are chosen without scoring. So are all visible blocks where they have room. Sequences own consecutive
// token ranges that together are all tokens.
// Rounding points: with bf16 the release holds the dot products, their weighted relu and the sum over heads
// as bf16 tensors. Each is rounded to bf16 (sums inside in fp32 or wider). A fast backend may score in fp32,
// says so, and reports near-ties. With f32 there is no rounding.
// Errors: InvalidArgument if dims, dtypes or ranges disagree or a key row is missing. num_tokens == 0 does
// nothing. A block of `within` that no visible entry is in is an error.
// Source: release inference code, class Indexer (model.md 7); blocks are V4.1's.
#pragma once

#include <span>

#include "ops/row_store.h"

namespace dsv4::ops {

struct IndexerSequence {
  int64_t token_begin = 0;
  int64_t num_tokens = 0;
  int64_t first_position = 0;
  PagedRows keys;
};

struct IndexerSelectArgs {
  TensorView q;
  TensorView weights;
  TensorView selected;
  int64_t ratio = 0;
  std::span<const IndexerSequence> sequences;
  TensorView within = {};  // May be null.
  TensorView best = {};    // May be null.
  int64_t block_size = 0;  // Entries of a block of `within` or `best`.
  DSV4_OPERANDS(q, selected, weights, within, best, sequences)
};

Status Validate(const IndexerSelectArgs& args);

}  // namespace dsv4::ops
