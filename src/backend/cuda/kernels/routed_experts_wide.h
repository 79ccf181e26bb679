// routed_experts where an expert has some hundred tokens: FP4 weights are widened into shared memory once for up to 256 of them.
#pragma once

#include "backend/cuda/cuda_context.h"
#include "backend/cuda/kernels/terms_work.h"

namespace dsv4::backend::cuda {

// So many tokens, and experts that are stored alike in FP4.
bool HasExpertsWide(const ExpertTable& table, const ops::ExpertTermsArgs& args);

// The terms, which are bf16.
Status ExpertsWide(CudaContext& context, const ExpertTable& table, const TermsWork& work);

}  // namespace dsv4::backend::cuda
