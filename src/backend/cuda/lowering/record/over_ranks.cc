// Recorder of context-parallel ops and of the exchanges between them, with what they read and write.
#include "backend/cuda/lowering/record/over_ranks.h"

#include "backend/cuda/kernels/indexer/indexer_over_ranks.h"
#include "backend/cuda/lowering/launch/lowering.h"
#include "backend/cuda/lowering/record/access_of.h"
#include "backend/cuda/lowering/record/indexer.h"
#include "backend/cuda/lowering/select/attention.h"
#include "backend/cuda/lowering/select/indexer.h"
#include "backend/cuda/runtime/cuda_context.h"

namespace dsv4::backend::cuda {
namespace {

RecordedOp Exchange(OpKind kind, const ExchangeWork& work) {
  const bool gathers = kind == OpKind::kGather;
  const int64_t bytes = work.params.num_rows * work.piece_bytes;
  return {.kind = kind,
          .accesses = {.reads = {AccessOf(work.mine, gathers ? bytes : work.params.size * bytes,
                                          gathers ? Division::kOfRank : Division::kPartsOfRank)},
                       .writes = {AccessOf(work.all, work.params.size * bytes,
                                           gathers ? Division::kOfAllRanks : Division::kPartsOfAllRanks)}},
          .work = work};
}

// Room for the rows of all tokens that one launch takes, kept from call to call: another op reads them.
struct RowsMemory {
  int32_t* num_rows = nullptr;
  int32_t* rows = nullptr;
};
Result<RowsMemory> MemoryOfRows(CudaContext& context, int64_t top_k) {
  DSV4_ASSIGN_OR_RETURN(int32_t* const memory,
                        context.lowering().ChosenRows(kMaxOverRanksTokens * (1 + top_k)));
  return RowsMemory{.num_rows = memory, .rows = memory + kMaxOverRanksTokens};
}

}  // namespace

void RecordGather(CudaContext& context, const ExchangeWork& work) {
  context.lowering().Record(Exchange(OpKind::kGather, work));
}

bool FuseAllToAll(CudaContext& context, const ExchangeWork& work) {
  return context.lowering().Fuse(Exchange(OpKind::kAllToAll, work));
}

Result<bool> RecordCandidates(CudaContext& context, const ops::IndexerCandidatesArgs& args,
                              const SequenceTable& table, const ScoreParams& score, int64_t num_entries) {
  const int64_t num_tokens = args.q.shape[0];
  const int64_t top_k = args.candidates.shape[1];
  // Rows of the rank that has most, so that all take the same.
  const int64_t most_rows = EntryShard{.index = 0, .count = args.shard.count}.NumRows(num_entries);
  if (!context.limits().has_clusters() || num_tokens > kMaxOverRanksTokens ||
      !ScoresOnTensorCores(args.q.dtype, table.form, score.num_heads, score.width) || num_entries <= top_k ||
      top_k > kMaxOverRanksTopK || args.shard.count > kMaxPeers || most_rows > kMaxOverRanksRows) {
    return false;
  }
  const bool scored_before = most_rows > kIndexerClusterEntries;
  if (!HoldsIndexerOverRanks(context, scored_before)) return false;
  CandidatesWork work = {.params = {}, .chosen = {}};
  IndexerOverRanks& params = work.params;
  params.table = table;
  params.score = score;
  params.score.scores = nullptr;
  params.shard_index = args.shard.index;
  params.shard_count = args.shard.count;
  params.top_k = top_k;
  params.num_tokens = num_tokens;
  params.candidates = args.candidates.as<uint64_t>();
  DSV4_ASSIGN_OR_RETURN(const RowsMemory memory, MemoryOfRows(context, top_k));
  params.num_rows = memory.num_rows;
  params.rows = memory.rows;
  work.chosen = {.list = {.selected = nullptr,
                          .num_tokens = num_tokens,
                          .top_k = top_k,
                          .ratio = args.ratio,
                          .sequences = TokensOf(args.sequences)},
                 .shard_index = args.shard.index,
                 .shard_count = args.shard.count};
  if (scored_before) {
    DSV4_ASSIGN_OR_RETURN(params.score.scores, context.Scratch<float>(num_tokens * score.max_visible));
    ScoreEntries(context, table, params.score, args.q.dtype, static_cast<unsigned>(num_tokens));
  }
  context.lowering().Record(
      {.kind = OpKind::kCandidates,
       .accesses = {.reads = {}, .writes = {AccessOf(args.candidates, Division::kOfRank)}},
       .work = std::move(work)});
  return true;
}

bool FuseMergeCandidates(CudaContext& context, const ops::MergeCandidatesArgs& args) {
  return context.lowering().Fuse(
      {.kind = OpKind::kMergeCandidates,
       .accesses = {.reads = {AccessOf(args.candidates, Division::kOfAllRanks)},
                    .writes = {AccessOf(args.selected)}},
       .work = MergeCandidatesWork{.candidates = args.candidates.as<const uint64_t>(),
                                   .shape = args.candidates.shape,
                                   .selected = args.selected.as<int32_t>(),
                                   .selected_shape = args.selected.shape}});
}

RowsChosenHere FindRowsChosenHere(CudaContext& context, const ops::AttentionPartArgs& args) {
  if (args.selected.is_null() || args.selected.shape[0] > kMaxOverRanksTokens) return {};
  const int64_t top_k = args.selected.shape[1];
  const bool known =
      context.lowering().Fuse({.kind = OpKind::kRowsHere,
                               .accesses = {},
                               .work = ChosenList{.list = {.selected = args.selected.data,
                                                           .num_tokens = args.selected.shape[0],
                                                           .top_k = top_k,
                                                           .ratio = args.ratio,
                                                           .sequences = TokensOf(args.sequences)},
                                                  .shard_index = args.shard.index,
                                                  .shard_count = args.shard.count}});
  if (!known) return {};
  const Result<RowsMemory> memory = MemoryOfRows(context, top_k);  // Address at which the choice wrote them.
  if (!memory.has_value()) return {};
  return {.rows = memory->rows, .num_rows = memory->num_rows};
}

bool FuseAttentionPart(CudaContext& context, const AttentionPartWork& work) {
  const PartParams& p = work.params;
  const DeviceLimits& limits = context.limits();
  if (!limits.has_clusters() ||
      DecodeClusterSharedBytes(p.head_dim, kMaxOverRanksTiles) > limits.shared_bytes)
    return false;
  const int64_t heads = p.num_tokens * p.num_heads;
  return context.lowering().Fuse(
      {.kind = OpKind::kAttentionPart,
       .accesses = {.reads = {AccessOf(p.q, heads * p.head_dim * int64_t{sizeof(uint16_t)},
                                       Division::kOfAllRanks)},
                    .writes = {AccessOf(p.part, heads * (p.head_dim + 2) * int64_t{sizeof(float)},
                                        Division::kPartsOfRank)}},
       .work = work});
}

bool FuseMergeAttention(CudaContext& context, const ops::MergeAttentionArgs& args) {
  return context.lowering().Fuse(
      {.kind = OpKind::kMergeAttention,
       .accesses = {.reads = {AccessOf(args.parts, Division::kPartsOfAllRanks), AccessOf(args.sink)},
                    .writes = {AccessOf(args.o, Division::kHeads)}},
       .work = MergeAttentionWork{.parts = args.parts.as<const float>(),
                                  .shape = args.parts.shape,
                                  .sink = args.sink.as<const float>(),
                                  .o = args.o.data,
                                  .dtype = args.o.dtype}});
}

}  // namespace dsv4::backend::cuda
