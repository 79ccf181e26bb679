// linear and grouped_linear for thousands of tokens: BF16 and FP8 weights are widened once, into packed rows (operand_layout.h), and
// both operands reach the matrix unit by the copy engine alone.
#pragma once

#include "backend/cuda/kernels/gemm/gemm_wgmma.h"

namespace dsv4::backend::cuda {

// Tokens from which it is worth it.
inline constexpr int64_t kMinPackedTokens = 1024;

bool HasLinearPacked(const LinearWgmmaArgs& args);
Status LinearPacked(CudaContext& context, const LinearWgmmaArgs& args);

}  // namespace dsv4::backend::cuda
