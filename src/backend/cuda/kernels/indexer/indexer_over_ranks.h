// indexer_candidates of a few tokens that have something to choose from, in one launch of a cluster a token, with what follows it: the all-gather of
// candidates by LL words, merge_candidates, and the lists of those chosen that lie here, which attention_part would make. It does what six
// launches do, whose bits are the same, and whose words travel as theirs: what another rank has fused does not matter. Where a rank has more
// entries than a cluster scores, they are scored by a launch in front.
#pragma once

#include "backend/cuda/lowering/work/over_ranks.h"

namespace dsv4::backend::cuda {

class CudaContext;

// Whether the device has room for its cluster. `scored_before`: by a launch in front.
bool HoldsIndexerOverRanks(CudaContext& context, bool scored_before);
void LaunchIndexerOverRanks(CudaContext& context, const IndexerOverRanks& params);

}  // namespace dsv4::backend::cuda
