// Common parts of ops that score entries have in common: which kernels score, and choose.
#pragma once

#include <cstdint>
#include <functional>

#include "backend/cuda/device/numeric/sequence_table.h"
#include "backend/cuda/lowering/work/score_params.h"
#include "base/status.h"
#include "tensor/dtype.h"

namespace dsv4::backend::cuda {

class CudaContext;

// Scores of `num_tokens` tokens from params.first_token on. What a query sees are the first NumVisible(...)
// rows of its sequence.
void ScoreEntries(CudaContext& context, const SequenceTable& table, ScoreParams params, DType dtype,
                  unsigned num_tokens);

// All tokens' best top_k entries, of as many tokens at a time as there is memory for scores. Without scores
// all that a token sees is chosen. `then`, if not null, is called behind each time's launches.
struct ScoredChoice {
  ScoreParams score;
  DType dtype;
  int64_t num_tokens;
  bool scored;
  int32_t* selected;  // [num_tokens, top_k]
  int64_t top_k;
  // Blocks of entries (ops/indexer_select.h); null: none. [num_tokens, num_blocks] each.
  const int32_t* within = nullptr;
  int32_t* best = nullptr;
  int64_t num_blocks = 0;
  int64_t block_size = 1;
};
using ChosenOf = std::function<void(const float* scores, int64_t first_token, unsigned num_tokens)>;
Status ScoreAndChoose(CudaContext& context, const SequenceTable& table, const ScoredChoice& choice,
                      const ChosenOf& then);

}  // namespace dsv4::backend::cuda
