// linear and grouped_linear for thousands of tokens: BF16 and FP8 weights are widened once, into packed rows
// (operand_layout.h), and both operands reach tensor cores by TMA alone.
#pragma once

#include "backend/cuda/kernels/gemm/gemm_wgmma.h"

namespace dsv4::backend::cuda {

Status GemmTmaBf16(LaunchContext& context, const GemmArgs& args);

}  // namespace dsv4::backend::cuda
