// linear and grouped_linear of many tokens in FP8 (Fp8Products): FP8 weights times activations that the
// release rounds to FP8, both as they are, on FP8 tensor cores, which takes twice the rate of bf16.
//
// The result y is the sum over blocks of 128 columns, in order, of fp32 fma(unit, xs * ws, total). There
// `unit` is the tensor cores' sum of the block's exact products of codes (e4m3_steps.cuh). The scale of the
// token's group is xs, that of the weight's block ws. So a token's result depends on its own row alone,
// whatever the number of tokens.
#pragma once

#include "backend/cuda/kernels/gemm/gemm_wgmma.h"

namespace dsv4::backend::cuda {

Status GemmTmaFp8(LaunchContext& context, const GemmArgs& args);

}  // namespace dsv4::backend::cuda
