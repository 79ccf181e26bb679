// The indexer's scores of decode steps over packed keys, on Hopper's tensor cores (wgmma): keys go from their
// codes to operands in registers.
#pragma once

#include "backend/cuda/device/numeric/sequence_table.h"
#include "backend/cuda/lowering/work/score_params.h"

namespace dsv4::backend::cuda {

class LaunchContext;

// As LaunchIndexerScoresMma, and with its bits; 64 heads, kReleaseKey in pages of whole kIndexerDecodePage,
// `num_blocks` a token.
void LaunchIndexerScoresDecode(LaunchContext& context, const SequenceTable& table, const ScoreParams& params,
                               int64_t num_tokens, int64_t num_blocks);

}  // namespace dsv4::backend::cuda
