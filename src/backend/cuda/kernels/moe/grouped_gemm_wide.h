// routed_experts where an expert has some hundred tokens: FP4 weights are widened in registers, for up to 128 tokens at a time.
#pragma once

#include "backend/cuda/kernels/moe/terms_work.h"
#include "backend/cuda/runtime/cuda_context.h"

namespace dsv4::backend::cuda {

// So many tokens, and experts that are stored alike in FP4.
bool HasExpertsWide(const ExpertTable& table, const ops::ExpertTermsArgs& args);

// The terms, which are bf16.
Status ExpertsWide(CudaContext& context, const ExpertTable& table, const TermsWork& work);

}  // namespace dsv4::backend::cuda
