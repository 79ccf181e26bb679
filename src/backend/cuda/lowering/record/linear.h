// What linears and experts of few tokens record.
#pragma once

#include "backend/cuda/lowering/work/linear.h"

namespace dsv4::backend::cuda {

class CudaContext;

void RecordLinear(CudaContext& context, const LinearWork& work);
void RecordExperts(CudaContext& context, const JointExpertsWork& work);

}  // namespace dsv4::backend::cuda
