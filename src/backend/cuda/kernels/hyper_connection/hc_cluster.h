// hc_pre of a few tokens as one launch, with hc_post in front of it and the norm behind it.
#pragma once

#include "backend/cuda/lowering/work/hyper_connection.h"

namespace dsv4::backend::cuda {

class LaunchContext;

// Whether the device has room for a cluster of streams so wide, which are at most kMaxHcClusterDim. It is
// asked before the launch (DeviceQueue::MostClusters).
bool HoldsHcCluster(LaunchContext& context, int64_t dim, bool over_ranks);

// `before`: none, or hc_post and what is in front of it. `norm`: null, or of u. Without the mix post and comb
// are another launch's work.
void LaunchHcCluster(LaunchContext& context, const HcPostBefore& before, const HcPreWork& pre,
                     const NormWork* norm, bool with_mix);

}  // namespace dsv4::backend::cuda
