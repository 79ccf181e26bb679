// indexer_candidates behind scores and choice, and merge_candidates: what ranks choose together that have a
// part of the entries each.
#pragma once

#include <cstdint>

#include "backend/cuda/device/numeric/sequence_table.h"
#include "ops/merge_candidates.h"

namespace dsv4::backend::cuda {

class LaunchContext;

struct CandidateParams {
  const int32_t* rows;  // [all tokens, top_k]: those chosen of the rows that are here, then -1
  const float* scores;  // [tokens of this launch, max_visible]; null: none was needed
  uint64_t* candidates;
  int64_t first_token;
  int64_t max_visible;
  int64_t top_k;
  // The table says what a query sees as rows that are here: its positions are `shift` further on, for `ratio`
  // times `count`.
  int64_t shift;
  int64_t ratio;
  int64_t shard_index;
  int64_t shard_count;
};

void LaunchIndexerCandidates(LaunchContext& context, const SequenceTable& table,
                             const CandidateParams& params, unsigned num_tokens);

void LaunchMergeCandidates(LaunchContext& context, const ops::MergeCandidatesArgs& args);

}  // namespace dsv4::backend::cuda
