// The indexer's scores of many tokens of few sequences, on Hopper's tensor cores (wgmma): keys are fetched
// once for several queries.
#pragma once

#include "backend/cuda/kernels/attention/sequence_table.h"
#include "backend/cuda/kernels/indexer/score_params.h"

namespace dsv4::backend::cuda {

class CudaContext;

// As LaunchIndexerScoresMma, and with its bits; 64 heads.
void LaunchIndexerScoresWgmma(CudaContext& context, const SequenceTable& table, const ScoreParams& params,
                              int64_t num_tokens);

}  // namespace dsv4::backend::cuda
