// The predicates of rules over ranks that divide a sequence's entries (fusion_rules.cc has the table).
#pragma once

#include "backend/cuda/lowering/launch/fusion_rules.h"

namespace dsv4::backend::cuda::over_ranks_rules {

// indexer_candidates, its all-gather, merge_candidates.
bool FitsGatherOfCandidates(const OpGroup& group, const RecordedOp& next, const DeviceRoom& room);
bool FitsMergeCandidates(const OpGroup& group, const RecordedOp& next, const DeviceRoom& room);
// Behind them: what they have chosen is known to the exchange that follows, and to attention_part's list
// behind either.
bool FitsAnyGather(const OpGroup& group, const RecordedOp& next, const DeviceRoom& room);
void HandOverChosen(OpGroup& group, RecordedOp& next);
bool FitsRowsHere(const OpGroup& group, const RecordedOp& next, const DeviceRoom& room);
bool FitsRowsHereBehindGather(const OpGroup& group, const RecordedOp& next, const DeviceRoom& room);

// The all-gather of queries, attention_part, the all-to-all of parts, merge_attention, rope.
bool FitsPart(const OpGroup& group, const RecordedOp& next, const DeviceRoom& room);
bool FitsExchangeOfParts(const OpGroup& group, const RecordedOp& next, const DeviceRoom& room);
bool FitsMergeAttention(const OpGroup& group, const RecordedOp& next, const DeviceRoom& room);
bool FitsRopeOfMerged(const OpGroup& group, const RecordedOp& next, const DeviceRoom& room);

// Heads of this rank, of a group that begins with the all-gather of queries.
int64_t OwnHeads(const OpGroup& group);
// Tiles of so many keys, in steps, so that the launches of one step after another are alike.
int64_t NumTiles(int64_t max_keys);

}  // namespace dsv4::backend::cuda::over_ranks_rules
