// routed_experts for a few tokens: two launches, each of which reads the chosen experts' weights once for
// each token that chose them.
#pragma once

#include "backend/cuda/runtime/launch_context.h"
#include "backend/cuda/weights/expert_table.h"
#include "ops/routed_experts.h"

namespace dsv4::backend::cuda {

// Choices a token may have.
inline constexpr int kMaxTopK = 64;

Status GemvExperts(LaunchContext& context, const ExpertTable& table, const ops::RoutedExpertsArgs& args);

}  // namespace dsv4::backend::cuda
