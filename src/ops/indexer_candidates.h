// IndexerCandidates: the part of IndexerSelect that a rank with some of the entries can do. It finds the
// rank's own best entries, with their scores, for MergeCandidates to choose from.
//   q, weights  as in IndexerSelect
//   sequences   as there, but keys are the rows of those entries that `shard` says are here
//   candidates  [num_tokens, top_k]  i64, best first, then 0, which stands for none. They are the
//               top_k best of the visible entries that are here (equal scores: lowest index; NaN last), as
//               numbers of the same order
// A candidate is an unsigned number. The high half has the score's bits, mapped so that their order is that
// of the scores (both zeros the same, NaN as -infinity). The low half is 2^32 - 1 - entry. A query that sees
// no more than top_k entries of all ranks needs no scoring: the entries here are all candidates, with score
// 0.
// Rounding points: those of IndexerSelect, and the score to f32, which one in bf16 is already.
// Errors: those of IndexerSelect; InvalidArgument for a shard that there cannot be. num_tokens == 0 does
// nothing.
#pragma once

#include <bit>
#include <cmath>
#include <limits>

#include "ops/indexer_select.h"

namespace dsv4::ops {

struct IndexerCandidatesArgs {
  TensorView q;
  TensorView weights;
  TensorView candidates;
  int64_t ratio = 0;
  EntryShard shard;
  std::span<const IndexerSequence> sequences;
  DSV4_OPERANDS(q, candidates, weights, sequences)
};

Status Validate(const IndexerCandidatesArgs& args);

// Orders as the scores do: NaN as the lowest, both zeros the same. Never 0.
inline uint32_t ScoreOrder(float score) {
  constexpr uint32_t kSign = 0x80000000U;
  if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0F);
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}
inline uint64_t MakeCandidate(float score, int64_t entry) {
  return uint64_t{ScoreOrder(score)} << 32 | (UINT32_MAX - static_cast<uint32_t>(entry));
}
inline int32_t EntryOfCandidate(uint64_t candidate) {
  return static_cast<int32_t>(UINT32_MAX - static_cast<uint32_t>(candidate));
}

}  // namespace dsv4::ops
