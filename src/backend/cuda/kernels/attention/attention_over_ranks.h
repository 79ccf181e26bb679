// Attention of a few tokens over ranks that divide its entries, in one launch. Queries go to the entries, and
// parts go back to their heads, merged and rotated. It does the work of five launches: attention_part,
// merge_attention and rope between an all-gather and an all-to-all of LL words. Bits and words are the same,
// so other ranks may have fused differently.
#pragma once

#include "backend/cuda/lowering/work/over_ranks.h"

namespace dsv4::backend::cuda {

class LaunchContext;

// Launch for 2, 4 or 8 ranks, heads 128 or 512 wide. `num_tiles`: of keys, that a token has at most
// (over_ranks_rules::NumTiles).
void LaunchAttentionOverRanks(LaunchContext& context, const AttentionOverRanks& params, int64_t num_tiles);

}  // namespace dsv4::backend::cuda
