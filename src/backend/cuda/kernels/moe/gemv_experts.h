// routed_experts for a few tokens: two launches, each of which reads the chosen experts' weights once for
// each token that chose them.
#pragma once

#include "backend/cuda/runtime/cuda_context.h"

namespace dsv4::backend::cuda {

// Choices a token may have.
inline constexpr int kMaxTopK = 64;

Status GemvExperts(CudaContext& context, const ExpertTable& table, const ops::RoutedExpertsArgs& args);

}  // namespace dsv4::backend::cuda
