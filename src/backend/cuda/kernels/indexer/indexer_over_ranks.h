// Op indexer_candidates of a few tokens that have something to choose from, in one launch of a cluster a
// token, with the steps behind it. These are the all-gather of candidates by LL words, merge_candidates, and
// the lists of chosen entries that lie here, which attention_part would make. It does the work of six
// launches. Bits and words are the same, so other ranks may have fused differently. Where a rank has more
// entries than a cluster scores, they are scored by a launch in front.
#pragma once

#include "backend/cuda/lowering/work/over_ranks.h"

namespace dsv4::backend::cuda {

class LaunchContext;

// Whether the device has room for its cluster. `scored_before`: by a launch in front.
bool HoldsIndexerOverRanks(LaunchContext& context, bool scored_before);
void LaunchIndexerOverRanks(LaunchContext& context, const IndexerOverRanks& params);

}  // namespace dsv4::backend::cuda
