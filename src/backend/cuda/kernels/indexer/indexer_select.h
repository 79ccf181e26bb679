// The indexer's scores of a step's queries: what a query sees are the first NumVisible(...) rows of its
// sequence.
#pragma once

#include "backend/cuda/device/numeric/sequence_table.h"
#include "backend/cuda/lowering/work/score_params.h"
#include "tensor/dtype.h"

namespace dsv4::backend::cuda {

class LaunchContext;

// Scores of `num_tokens` tokens from params.first_token on, any width and number of heads that CanScore
// takes.
void LaunchIndexerScores(LaunchContext& context, const SequenceTable& table, const ScoreParams& params,
                         DType dtype, unsigned num_tokens);
// The same on tensor cores (ScoresOnTensorCores). params.tiles_per_block: ScoreTilesOfBlock.
void LaunchIndexerScoresMma(LaunchContext& context, const SequenceTable& table, const ScoreParams& params,
                            unsigned num_tokens);

}  // namespace dsv4::backend::cuda
