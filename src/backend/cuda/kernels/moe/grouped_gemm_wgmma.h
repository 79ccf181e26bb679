// Op routed_experts for many tokens, on tensor cores (gemm_wgmma_tiles.cuh). Assignments are grouped by
// expert, their rows of x packed. Gate, up and their activation are one launch, down is another.
#pragma once

#include "backend/cuda/kernels/moe/terms_work.h"
#include "backend/cuda/runtime/launch_context.h"
#include "backend/cuda/weights/expert_table.h"

namespace dsv4::backend::cuda {

// The terms, which are bf16.
Status GroupedGemmWgmma(LaunchContext& context, const ExpertTable& table, const TermsWork& work);

}  // namespace dsv4::backend::cuda
