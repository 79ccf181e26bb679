// The best `top_k` scores of each token, exactly: the highest, ties by lowest index, written in ascending order of index and
// followed by -1.
#pragma once

#include "backend/cuda/kernels/attention/sequence_table.h"
#include "backend/cuda/lowering/select/indexer.h"

namespace dsv4::backend::cuda {

class CudaContext;

struct TopKParams {
  const float* scores =
      nullptr;  // [tokens of this launch, max_visible]; null when no token sees more than top_k entries.
  int32_t* selected = nullptr;  // [all tokens, top_k]
  int64_t first_token = 0;
  int64_t max_visible = 0;
  int64_t top_k = 0;
  int64_t ratio = 1;
  bool rounded = false;  // Scores are bf16 numbers.
};

void LaunchTopK(CudaContext& context, const SequenceTable& table, const TopKParams& params, TopKPath kernel,
                int64_t num_tokens);
// TopKPath::kCluster.
void LaunchTopKCluster(CudaContext& context, const SequenceTable& table, const TopKParams& params,
                       int64_t num_tokens);

}  // namespace dsv4::backend::cuda
