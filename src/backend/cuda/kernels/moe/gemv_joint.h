// routed_experts of FP4 for a few tokens in one launch, and with it the linear that follows: the shared expert's down.
#pragma once

#include "backend/cuda/kernels/gemm/gemv_stream.h"
#include "backend/cuda/runtime/cuda_context.h"

namespace dsv4::backend::cuda {

// False: a device without room for all blocks at once or for two tiles in a block.
Result<bool> GemvJoint(CudaContext& context, const ExpertTable& table, const ops::RoutedExpertsArgs& args);

// Whether this linear of one token has become part of the last launch, which was one of GemvJoint: it is multiplied before the
// experts' weights are there.
bool LinearJoinsExperts(CudaContext& context, const GemvArgs& args);

}  // namespace dsv4::backend::cuda
