// Records of ops over ranks that divide a sequence's entries, and the exchanges between them.
#pragma once

#include "backend/cuda/lowering/work/over_ranks.h"
#include "base/status.h"
#include "ops/attention_part.h"
#include "ops/indexer_candidates.h"
#include "ops/merge_attention.h"
#include "ops/merge_candidates.h"

namespace dsv4::backend::cuda {

class CudaContext;

// In place, `count` floats by the LL exchange (lowering/record/hyper_connection.cc).
void RecordRankSum(CudaContext& context, const PeerLinks& links, float* values, int64_t count);

// An all-gather. An all-to-all is part of what is in front of it, or false: it has yet to be launched.
void RecordGather(CudaContext& context, const ExchangeWork& work);
bool FuseAllToAll(CudaContext& context, const ExchangeWork& work);

// Whether indexer_candidates is recorded: a few tokens with something to choose from. `table` and `score` are
// those of the rows that are here (`score.scores` is not used); `num_entries`: of all ranks. False: the
// cluster's kernel does not take it.
Result<bool> RecordCandidates(CudaContext& context, const ops::IndexerCandidatesArgs& args,
                              const SequenceTable& table, const ScoreParams& score, int64_t num_entries);
// Whether they are part of what is in front of them.
bool FuseMergeCandidates(CudaContext& context, const ops::MergeCandidatesArgs& args);
bool FuseAttentionPart(CudaContext& context, const AttentionPartWork& work);
bool FuseMergeAttention(CudaContext& context, const ops::MergeAttentionArgs& args);

// The rows of `args.selected` that are here, if that is what has just been chosen: in ascending order, and
// how many. Null: not known.
struct RowsChosenHere {
  const int32_t* rows = nullptr;
  const int32_t* num_rows = nullptr;
};
RowsChosenHere FindRowsChosenHere(CudaContext& context, const ops::AttentionPartArgs& args);

}  // namespace dsv4::backend::cuda
