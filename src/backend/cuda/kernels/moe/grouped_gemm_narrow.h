// routed_experts where an expert has 7 to 29 tokens on average: FP4 weights are widened in registers, for up
// to 32 tokens at a time.
#pragma once

#include "backend/cuda/kernels/moe/terms_work.h"
#include "backend/cuda/weights/expert_table.h"
#include "base/status.h"

namespace dsv4::backend::cuda {

class LaunchContext;

// The terms, which are bf16.
Status GroupedGemmNarrow(LaunchContext& context, const ExpertTable& table, const TermsWork& work);

}  // namespace dsv4::backend::cuda
