// CompressorPool: gated pooling of `ratio` tokens to one entry, for every block that a step completes.
//
// The token at position p has a = values row and b = scores row + ape[p mod ratio], each `channels * width`
// wide. There are 2 channels when `overlap` (CSA, ratio 4) and 1 otherwise. Entry j covers positions [j
// ratio, (j+1) ratio).
//   no overlap: E_j[c] = sum_t softmax_t(b_t[c]) a_t[c] over the block's tokens, per channel c in [0, width)
//   overlap:    2 * ratio rows: the previous block's tokens with channels [0, width) and the
//               block's own with [width, 2 width). For j = 0 the previous rows are absent (score -inf)
//
//   values, scores  [num_tokens, channels * width]  f32: this step's wkv u and wgate u, without ape
//   ape             [ratio, channels * width]       f32, or null: b is the scores row alone
//   pooled          [num_entries, width]            bf16 or f32: all sequences' entries, in order of sequence and j
//   sequences       one for each sequence of the step, rows token_begin .. token_begin + num_tokens, consecutive
// Earlier tokens of unfinished (and, with overlap, previous) blocks come from the sequence's history rings:
// f32 rows of channels * width, the scores WITH ape. The op then writes this step's (a, b) into the rings;
// only the last `capacity` tokens of a long chunk are written. A ring must hold what later blocks need:
// capacity >= ratio * channels - 1. The number num_entries is the sum over sequences of floor(end / ratio) -
// floor(begin / ratio). There begin = first_position and end = first_position + num_tokens.
// Softmax in fp32 or wider with the maximum subtracted. One rounding point: the store to pooled.
// Errors: InvalidArgument if dims, dtypes, entry counts or capacities disagree.
// Source: release inference code, class Compressor (model.md 6).
#pragma once

#include <span>

#include "ops/row_store.h"

namespace dsv4::ops {

struct CompressorSequence {
  int64_t token_begin = 0;
  int64_t num_tokens = 0;
  int64_t first_position = 0;
  RingRows value_history;
  RingRows score_history;
};

struct CompressorPoolArgs {
  TensorView values;
  TensorView scores;
  TensorView ape;  // May be null.
  TensorView pooled;
  int64_t ratio = 0;
  bool overlap = false;
  std::span<const CompressorSequence> sequences;
  DSV4_OPERANDS(values, pooled, scores, ape, sequences)
};

// Entries that tokens [begin, begin + num_tokens) complete.
constexpr int64_t NumCompletedEntries(int64_t begin, int64_t num_tokens, int64_t ratio) {
  return (begin + num_tokens) / ratio - begin / ratio;
}

Status Validate(const CompressorPoolArgs& args);

}  // namespace dsv4::ops
