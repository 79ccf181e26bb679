// hc_pre of 9 to 256 tokens in two launches, the first with hc_post in front of it, the second with the norm
// behind it.
#pragma once

#include "backend/cuda/lowering/work/hyper_connection.h"

namespace dsv4::backend::cuda {

class LaunchContext;

// As LaunchHcCluster, but never over ranks.
void LaunchHcTokenTiles(LaunchContext& context, const HcPostBefore& before, const HcPreWork& pre,
                        const NormWork* norm, bool with_mix);

}  // namespace dsv4::backend::cuda
