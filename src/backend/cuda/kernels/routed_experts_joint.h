// routed_experts of FP4 for a few tokens in one launch.
#pragma once

#include "backend/cuda/cuda_context.h"

namespace dsv4::backend::cuda {

// For experts that CanStreamExperts takes. False: other formats, or a device without room for all blocks at once.
Result<bool> JoinedExperts(CudaContext& context, const ExpertTable& table,
                           const ops::RoutedExpertsArgs& args);

}  // namespace dsv4::backend::cuda
