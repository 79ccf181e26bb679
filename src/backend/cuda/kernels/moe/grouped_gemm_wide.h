// routed_experts where an expert has some hundred tokens: FP4 weights are widened in registers, for up to 128
// tokens at a time.
#pragma once

#include "backend/cuda/kernels/moe/terms_work.h"
#include "backend/cuda/runtime/launch_context.h"
#include "backend/cuda/weights/expert_table.h"

namespace dsv4::backend::cuda {

// The terms, which are bf16.
Status GroupedGemmWide(LaunchContext& context, const ExpertTable& table, const TermsWork& work);

}  // namespace dsv4::backend::cuda
