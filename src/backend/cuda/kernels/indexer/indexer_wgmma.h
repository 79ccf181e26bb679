// The indexer's scores of many tokens of few sequences, on Hopper's tensor cores (wgmma): keys are fetched
// once for several queries.
#pragma once

#include "backend/cuda/device/numeric/sequence_table.h"
#include "backend/cuda/lowering/work/score_params.h"

namespace dsv4::backend::cuda {

class LaunchContext;

// As LaunchIndexerScoresMma, and with its bits; 64 heads.
void LaunchIndexerScoresWgmma(LaunchContext& context, const SequenceTable& table, const ScoreParams& params,
                              int64_t num_tokens);

}  // namespace dsv4::backend::cuda
