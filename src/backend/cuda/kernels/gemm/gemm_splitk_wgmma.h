// linear and grouped_linear for some tens of tokens, on Hopper's matrix unit, at the speed of reading weights: a block keeps a slice of
// the activations' columns in shared memory and has row tiles of the weight go by.
#pragma once

#include "backend/cuda/kernels/gemm/gemm_wgmma.h"
#include "backend/cuda/runtime/cuda_context.h"

namespace dsv4::backend::cuda {

// The most tokens that these kernels take; a few are for others (gemv_stream.h).
inline constexpr int64_t kMaxSliceTokens = 64;

// BF16 and FP8 weights whose segments of columns fit.
bool HasLinearSlices(CudaContext& context, const LinearWgmmaArgs& args);
Status LinearSlices(CudaContext& context, const LinearWgmmaArgs& args);

}  // namespace dsv4::backend::cuda
