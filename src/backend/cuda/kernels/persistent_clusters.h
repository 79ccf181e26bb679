// Launches kernels whose blocks work off tiles until there are none: as many clusters as the device has room
// for at once.
#pragma once

#include <algorithm>
#include <climits>
#include <cstddef>

#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {

struct PersistentClusters {
  int blocks;  // Blocks of a cluster. Of one block there is one a SM.
  int threads;
  size_t shared_bytes;
  int most = INT_MAX;  // Clusters that have a tile.
};

template <typename... Params, typename... Args>
void LaunchPersistent(LaunchContext& context, void (*kernel)(Params...), const PersistentClusters& clusters,
                      const Args&... args) {
  const int room =
      clusters.blocks == 1
          ? context.limits().num_sms
          : std::max(1, context.MostClusters(reinterpret_cast<const void*>(kernel),
                                             static_cast<unsigned>(clusters.blocks),
                                             static_cast<unsigned>(clusters.threads), clusters.shared_bytes));
  context.Launch(kernel, static_cast<unsigned>(std::min(clusters.most, room) * clusters.blocks),
                 static_cast<unsigned>(clusters.threads), clusters.shared_bytes, args...);
}

}  // namespace dsv4::backend::cuda
