// The indexer's scores of many tokens of few sequences, on Hopper's tensor cores (wgmma): keys are fetched once for several queries.
#pragma once

#include "backend/cuda/kernels/indexer/indexer_scores.h"
#include "backend/cuda/runtime/cuda_context.h"

namespace dsv4::backend::cuda {

// As ScoreEntries, and with its bits.
void ScoreEntriesWgmma(CudaContext& context, const SequenceTable& table, ScoreParams params,
                       int64_t num_tokens);

}  // namespace dsv4::backend::cuda
