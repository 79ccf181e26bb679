// attention for some tens of tokens and the release's head width, on the matrix unit: a cluster's blocks divide the tiles of 64 heads of a
// token where logits are computed, and the columns where values are.
#pragma once

#include "backend/cuda/kernels/attention/attention_params.h"
#include "backend/cuda/runtime/cuda_context.h"

namespace dsv4::backend::cuda {

// max_keys: of any token.
bool HasAttentionColumns(CudaContext& context, DType dtype, const AttentionParams& params, int64_t max_keys);
Status AttentionColumns(CudaContext& context, const SequenceTable& table, const AttentionParams& params);

}  // namespace dsv4::backend::cuda
