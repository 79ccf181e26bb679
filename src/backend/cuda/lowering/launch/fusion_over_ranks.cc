// Predicates of the fusion rules for context-parallel ranks: shapes, room and operands that must be apart.
#include "backend/cuda/lowering/launch/fusion_over_ranks.h"

#include <algorithm>

#include "backend/cuda/lowering/rule.h"
#include "backend/cuda/lowering/select/attention.h"

namespace dsv4::backend::cuda::over_ranks_rules {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool IsApart(const OpGroup& group, const RecordedOp& next) {
  return !WritesWhatItReads(next.accesses) && std::ranges::all_of(group.ops, [&](const RecordedOp& op) {
    return MayShareLaunch(op.accesses, next.accesses);
  });
}

// The list that merge_candidates, the group's last, has written.
ChosenList ChosenOf(const OpGroup& group) {
  ChosenList chosen = group.As<CandidatesWork>(0).chosen;
  chosen.list.selected = group.Last<MergeCandidatesWork>().selected;
  return chosen;
}

bool IsOfCandidates(const OpGroup& group) { return group.first().kind == OpKind::kCandidates; }

}  // namespace

int64_t NumTiles(int64_t max_keys) { return InSteps(CeilDiv(max_keys, kAttentionTileKeys)); }

int64_t OwnHeads(const OpGroup& group) {
  const int64_t head_bytes = group.As<AttentionPartWork>(1).params.head_dim * int64_t{sizeof(uint16_t)};
  return group.As<ExchangeWork>(0).piece_bytes / head_bytes;
}

bool FitsGatherOfCandidates(const OpGroup& group, const RecordedOp& next, const DeviceRoom& /*room*/) {
  const IndexerOverRanks& candidates = group.Last<CandidatesWork>().params;
  const auto& gather = std::get<ExchangeWork>(next.work);
  const int64_t bytes = candidates.top_k * int64_t{sizeof(uint64_t)};
  return candidates.candidates == gather.mine && candidates.num_tokens == gather.params.num_rows &&
         candidates.shard_index == gather.params.rank && candidates.shard_count == gather.params.size &&
         gather.piece_bytes == bytes && IsApart(group, next);
}

bool FitsMergeCandidates(const OpGroup& group, const RecordedOp& next, const DeviceRoom& /*room*/) {
  if (!IsOfCandidates(group)) return false;
  const IndexerOverRanks& candidates = group.As<CandidatesWork>(0).params;
  const auto& gather = group.Last<ExchangeWork>();
  const auto& merge = std::get<MergeCandidatesWork>(next.work);
  return merge.candidates == gather.all &&
         merge.shape == Shape{candidates.num_tokens, gather.params.size * candidates.top_k} &&
         merge.selected_shape == Shape{candidates.num_tokens, candidates.top_k} && IsApart(group, next);
}

bool FitsAnyGather(const OpGroup& group, const RecordedOp& /*next*/, const DeviceRoom& /*room*/) {
  return IsOfCandidates(group);
}
void HandOverChosen(OpGroup& group, RecordedOp& next) {
  std::get<ExchangeWork>(next.work).chosen = ChosenOf(group);
}

bool FitsRowsHere(const OpGroup& group, const RecordedOp& next, const DeviceRoom& /*room*/) {
  return IsOfCandidates(group) && ChosenOf(group) == std::get<ChosenList>(next.work);
}
bool FitsRowsHereBehindGather(const OpGroup& group, const RecordedOp& next, const DeviceRoom& /*room*/) {
  return group.ops.size() == 1 && group.Last<ExchangeWork>().chosen == std::get<ChosenList>(next.work);
}

bool FitsPart(const OpGroup& group, const RecordedOp& next, const DeviceRoom& /*room*/) {
  if (group.ops.size() != 1) return false;
  const auto& gather = group.Last<ExchangeWork>();
  const auto& part = std::get<AttentionPartWork>(next.work);
  const PartParams& p = part.params;
  const int ranks = gather.params.size;
  const int64_t own_heads = gather.piece_bytes / (p.head_dim * int64_t{sizeof(uint16_t)});
  return gather.all == p.q && p.num_tokens == gather.params.num_rows && p.num_tokens <= kMaxOverRanksTokens &&
         part.dtype == DType::kBF16 && (p.head_dim == 512 || p.head_dim == 128) &&
         NumTiles(part.max_keys) <= kMaxOverRanksBlocks * kMaxOverRanksTiles &&
         (ranks == 2 || ranks == 4 || ranks == 8) && own_heads * ranks == p.num_heads &&
         own_heads % kOverRanksHeads == 0 && IsAligned(gather.mine, 16) && IsAligned(gather.all, 16) &&
         IsApart(group, next);
}

bool FitsExchangeOfParts(const OpGroup& group, const RecordedOp& next, const DeviceRoom& /*room*/) {
  const PartParams& part = group.Last<AttentionPartWork>().params;
  const auto& exchange = std::get<ExchangeWork>(next.work);
  const int64_t bytes = OwnHeads(group) * (part.head_dim + 2) * int64_t{sizeof(float)};
  return exchange.mine == part.part && exchange.piece_bytes == bytes &&
         exchange.params.num_rows == part.num_tokens && IsApart(group, next);
}

bool FitsMergeAttention(const OpGroup& group, const RecordedOp& next, const DeviceRoom& /*room*/) {
  const auto& exchange = group.Last<ExchangeWork>();
  const auto& merge = std::get<MergeAttentionWork>(next.work);
  const PartParams& part = group.As<AttentionPartWork>(1).params;
  return merge.parts == exchange.all &&
         merge.shape == Shape{exchange.params.size, part.num_tokens, OwnHeads(group), part.head_dim + 2} &&
         merge.dtype == DType::kBF16 && IsApart(group, next);
}

bool FitsRopeOfMerged(const OpGroup& group, const RecordedOp& next, const DeviceRoom& /*room*/) {
  const auto& rope = std::get<RopeWork>(next.work);
  const PartParams& part = group.As<AttentionPartWork>(1).params;
  return rope.x == group.Last<MergeAttentionWork>().o && rope.dtype == DType::kBF16 &&
         rope.shape == Shape{part.num_tokens, OwnHeads(group), part.head_dim} &&
         rope.rotation.num_frequencies <= kMaxDecodeClusterFrequencies && IsApart(group, next);
}

}  // namespace dsv4::backend::cuda::over_ranks_rules
