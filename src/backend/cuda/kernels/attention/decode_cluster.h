// Op attention of a few tokens in one launch. A cluster of blocks takes 16 heads of a token through its tiles
// of keys and combines them through shared memory. Tiles, formula and the order of all sums are those of
// attention_mma.h, and so are the bits.
#pragma once

#include "backend/cuda/lowering/work/attention.h"

namespace dsv4::backend::cuda {

class LaunchContext;

// `rotation`: of what attention gives, if it has frequencies.
void LaunchDecodeCluster(LaunchContext& context, const AttentionWork& work, const OutputRotation& rotation);

}  // namespace dsv4::backend::cuda
