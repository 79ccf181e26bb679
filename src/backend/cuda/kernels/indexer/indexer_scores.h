// The indexer's scores of a step's queries, for the kernels that choose from them.
#pragma once

#include "backend/cuda/kernels/attention/sequences.h"
#include "backend/cuda/kernels/indexer/score_params.h"
#include "backend/cuda/lowering/select/indexer.h"
#include "backend/cuda/runtime/cuda_context.h"

namespace dsv4::backend::cuda {

// Whether the kernels take such queries and so many entries.
bool CanScore(const DeviceLimits& device, int64_t num_heads, int64_t width, int64_t max_visible);

// Scores of `num_tokens` tokens from params.first_token on. What a query sees are the first NumVisible(...) rows of its sequence.
void ScoreEntries(CudaContext& context, const SequenceTable& table, ScoreParams params, DType dtype,
                  unsigned num_tokens);

}  // namespace dsv4::backend::cuda
