// Scores and selection of a few tokens with a few thousand entries in one launch. A cluster of blocks scores
// the entries, a piece each, sends its scores to every block and selects from all of them. Scores and choice
// are those of indexer_select.h and top_k.h.
#pragma once

#include "backend/cuda/device/numeric/sequence_table.h"
#include "backend/cuda/lowering/work/score_params.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {

// Clusters that the device runs at once: tokens of a launch at most.
int64_t IndexerClusters(LaunchContext& context);

// `selected`: [all tokens, top_k]; params.scores is not used.
void LaunchIndexerCluster(LaunchContext& context, const SequenceTable& table, const ScoreParams& params,
                          int32_t* selected, int64_t num_tokens);

}  // namespace dsv4::backend::cuda
