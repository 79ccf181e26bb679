// routed_experts of FP4 for a few tokens in one launch, and with it the linear that follows: the shared
// expert's down.
#pragma once

#include "backend/cuda/lowering/work/linear.h"

namespace dsv4::backend::cuda {

class LaunchContext;

// Whether the device has room for all blocks at once, and for two tiles in a block. `linear` may be null;
// else it is of one token, and is multiplied before the experts' weights are there.
bool HoldsGemvJoint(LaunchContext& context, const JointExpertsWork& experts, const LinearWork* linear);
Status LaunchGemvJoint(LaunchContext& context, const JointExpertsWork& experts, const LinearWork* linear);

}  // namespace dsv4::backend::cuda
