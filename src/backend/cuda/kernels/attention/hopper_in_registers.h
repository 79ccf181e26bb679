// attention for many tokens of up to 640 visible keys and the release's head width, on the matrix unit: logits are computed once and
// stay in registers until the largest is known.
#pragma once

#include "backend/cuda/kernels/attention/attention_params.h"
#include "backend/cuda/runtime/cuda_context.h"

namespace dsv4::backend::cuda {

// max_keys: of any token. q is at a multiple of 16 bytes.
bool HasAttentionOnce(DType dtype, const AttentionParams& params, int64_t max_keys);
Status AttentionOnce(CudaContext& context, const SequenceTable& table, const AttentionParams& params);

}  // namespace dsv4::backend::cuda
