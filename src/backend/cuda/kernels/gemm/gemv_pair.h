// Op grouped_linear of a few tokens and the linear of its result, in one launch. All blocks meet between the
// two, with the second's weights already on their way.
#pragma once

#include "backend/cuda/lowering/work/linear.h"

namespace dsv4::backend::cuda {

class LaunchContext;

// Whether there is a kernel for the two, and all its blocks run at once.
bool HoldsGemvPair(LaunchContext& context, const LinearWork& groups, const LinearWork& linear);
// `links`: if they are not none, the second's results also go to the other ranks, as this rank's part of an
// LL sum (PeerLinks::pushed).
Status LaunchGemvPair(LaunchContext& context, const LinearWork& groups, const LinearWork& linear,
                      const PeerLinks& links);

}  // namespace dsv4::backend::cuda
