// Op attention for 9 to 64 tokens and the release's head width, on tensor cores. A cluster's blocks divide
// the tiles of 64 heads of a token for logits, and the columns for values.
#pragma once

#include "backend/cuda/lowering/work/attention_params.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {

// Clusters of 8, 4 or 2 blocks that the device runs at once.
int64_t ColumnClusters(LaunchContext& context, int blocks);

// With clusters of `num_blocks` (BlocksOfColumns).
Status HopperClusterColumns(LaunchContext& context, const SequenceTable& table, const AttentionParams& params,
                            int num_blocks);

}  // namespace dsv4::backend::cuda
