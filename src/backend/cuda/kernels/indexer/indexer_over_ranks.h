// indexer_candidates of one token that has something to choose from, in one launch of a cluster, which what follows it may fuse with: the
// all-gather of candidates by LL words, merge_candidates, and the list of those chosen that lie here, which attention_part would make.
// It does what six launches do, one after the other, whose bits are the same, and whose words travel as theirs: what another rank has
// joined does not matter. Where a rank has more entries than a cluster scores, they are scored by a launch in front.
#pragma once

#include <span>

#include "backend/cuda/collectives/ll_exchange.h"
#include "backend/cuda/kernels/attention/sequences.h"
#include "backend/cuda/kernels/indexer/indexer_scores.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "ops/attention_part.h"
#include "ops/indexer_candidates.h"
#include "ops/merge_candidates.h"

namespace dsv4::backend::cuda {

struct IndexerOverRanks;

// Launches it, if the kernel takes such a call; false: it does not. `table` and `score` are those of the rows that are here (`score.scores` is
// not used); `num_entries`: of all ranks.
Result<bool> CandidatesInCluster(CudaContext& context, const ops::IndexerCandidatesArgs& args,
                                 const SequenceTable& table, const ScoreParams& score, int64_t num_entries);

// Whether the launch, if it is the last, now does an all-gather of `row_bytes` from every rank into `all` too,
bool GatherJoinsCandidates(CudaContext& context, const PeerLinks& links, const void* mine, void* all,
                           std::span<const int64_t> row_bytes);
// and the choice from what that gives.
bool MergeJoinsCandidates(CudaContext& context, const ops::MergeCandidatesArgs& args);

// The rows of `args.selected` that are here, if that is what the launch chose and nothing has been launched since but the all-gather
// of args.q, whose number is `queries` (0: none): [top_k] in ascending order, and how many. Null: not known.
struct RowsChosenHere {
  const int32_t* rows = nullptr;
  const int32_t* num_rows = nullptr;
};
RowsChosenHere FindRowsChosenHere(CudaContext& context, const ops::AttentionPartArgs& args, uint64_t queries);

}  // namespace dsv4::backend::cuda
