// attention for many tokens and the release's head width, on tensor cores: a block takes 64 heads of a token.
#pragma once

#include "backend/cuda/kernels/attention/attention_params.h"
#include "backend/cuda/runtime/cuda_context.h"

namespace dsv4::backend::cuda {

Status HopperTwoPass(CudaContext& context, const SequenceTable& table, const AttentionParams& params);

}  // namespace dsv4::backend::cuda
