// A call for the indexer's scores without the sequences (sequence_table.h).
#pragma once

#include <cstdint>

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
  int tiles_per_block = 1;  // Tiles of keys; the tensor-core kernels' (ScoreTilesOfBlock).
};

}  // namespace dsv4::backend::cuda
