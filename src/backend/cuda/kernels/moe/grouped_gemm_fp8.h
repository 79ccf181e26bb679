// Op routed_experts in FP8 (Fp8Products). MXFP4 weights are exactly e4m3 but for a power of two a row
// (e4m3_experts.h). They multiply activations in FP8 as they are, on FP8 tensor cores.
//
// Result of a product: 2^r times the sum over blocks of 128 columns, in order, of fp32 fma(unit, xs, total).
// There `unit` is the tensor cores' sum of the block's exact products of codes (e4m3_steps.cuh). The scale of
// the token's group is xs, that of the row 2^r. So a token's result depends on its own row and experts alone.
// NVFP4's scales are no powers of two: such experts stay in bf16.
#pragma once

#include "backend/cuda/kernels/moe/terms_work.h"
#include "backend/cuda/runtime/launch_context.h"
#include "backend/cuda/weights/expert_table.h"

namespace dsv4::backend::cuda {

// The terms, which are bf16.
Status GroupedGemmFp8(LaunchContext& context, const ExpertTable& table, const TermsWork& work);

}  // namespace dsv4::backend::cuda
