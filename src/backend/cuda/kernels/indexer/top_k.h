// The best `top_k` items of each token by their scores, exactly: the highest, ties by lowest index. They are
// written in ascending order of index and followed by -1.
#pragma once

#include "backend/cuda/device/numeric/sequence_table.h"
#include "backend/cuda/lowering/select/indexer.h"

namespace dsv4::backend::cuda {

class LaunchContext;
struct Fault;

struct TopKParams {
  const float* scores =
      nullptr;  // [tokens of this launch, stride]; null when no token has more than top_k items.
  int32_t* selected = nullptr;  // [all tokens, top_k]
  int64_t first_token = 0;
  int64_t stride = 0;
  int64_t max_items = 0;
  int64_t top_k = 0;
  int64_t ratio = 1;
  bool rounded = false;  // Scores are bf16 numbers.
  // Items are entries, or, of more than one entry each, blocks that have a score each. `within` [all tokens,
  // num_blocks]: entries in these blocks, which ascend and are followed by -1.
  int block_size = 1;
  const int32_t* within = nullptr;
  int num_blocks = 0;
  Fault* fault = nullptr;
};

void LaunchTopK(LaunchContext& context, const SequenceTable& table, const TopKParams& params, TopKPath kernel,
                int64_t num_tokens);
// TopKPath::kCluster.
void LaunchTopKCluster(LaunchContext& context, const SequenceTable& table, const TopKParams& params,
                       int64_t num_tokens);

// Scores of blocks of entries, which indexer_select's `best` are chosen by.
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
void LaunchBlockScores(LaunchContext& context, const SequenceTable& table, const BlockScoreParams& params,
                       unsigned num_tokens);

}  // namespace dsv4::backend::cuda
