// linear and grouped_linear for 9 to 64 tokens, on Hopper's tensor cores (wgmma), at the speed of reading weights: a block keeps a slice of
// the activations' columns in shared memory and has row tiles of the weight go by.
#pragma once

#include "backend/cuda/kernels/gemm/gemm_wgmma.h"
#include "backend/cuda/runtime/cuda_context.h"

namespace dsv4::backend::cuda {

Status GemmSplitK(CudaContext& context, const GemmArgs& args);

}  // namespace dsv4::backend::cuda
