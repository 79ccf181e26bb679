// The indexer's scores of a step's queries, for the kernels that choose from them.
#pragma once

#include "backend/cuda/kernels/attention/sequences.h"
#include "backend/cuda/lowering/select/indexer.h"
#include "backend/cuda/runtime/cuda_context.h"

namespace dsv4::backend::cuda {

struct ScoreParams {
  const void* q;
  const void* weights;
  float* scores;  // [tokens of this launch, max_visible]
  int64_t first_token;
  int64_t max_visible;
  int64_t top_k;  // Queries that see no more entries are not scored.
  int64_t ratio;
  int num_heads;
  int width;
  int tiles_per_block = 1;  // Of keys; the tensor-core kernels', set where they are launched.
};

// Whether the kernels take such queries and so many entries.
bool CanScore(const DeviceLimits& device, int64_t num_heads, int64_t width, int64_t max_visible);

// Scores of `num_tokens` tokens from params.first_token on. What a query sees are the first NumVisible(...) rows of its sequence.
void ScoreEntries(CudaContext& context, const SequenceTable& table, ScoreParams params, DType dtype,
                  unsigned num_tokens);

}  // namespace dsv4::backend::cuda
