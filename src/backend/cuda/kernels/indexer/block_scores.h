// Scores of blocks of entries, which indexer_select's `best` are chosen by.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attention/sequence_table.h"

namespace dsv4::backend::cuda {

class CudaContext;

struct BlockScoreParams {
  const float* scores;  // [tokens of this launch, max_visible], of entries.
  float* blocks;        // [tokens of this launch, max_blocks]
  int64_t first_token;
  int64_t max_visible;
  int64_t max_blocks;
  int64_t most_unscored;  // Blocks of a token that is left out.
  int64_t ratio;
  int block_size;
};
void LaunchBlockScores(CudaContext& context, const SequenceTable& table, const BlockScoreParams& params,
                       unsigned num_tokens);

}  // namespace dsv4::backend::cuda
