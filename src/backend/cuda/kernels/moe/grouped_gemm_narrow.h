// routed_experts where an expert has 7 to 29 tokens on average: FP4 weights are widened in registers, for up
// to 32 tokens at a time.
#pragma once

#include "backend/cuda/kernels/moe/terms_work.h"
#include "base/status.h"

namespace dsv4::backend::cuda {

class CudaContext;
struct ExpertTable;

// The terms, which are bf16.
Status GroupedGemmNarrow(CudaContext& context, const ExpertTable& table, const TermsWork& work);

}  // namespace dsv4::backend::cuda
