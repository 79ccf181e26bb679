// Op routed_experts for 9 to 64 tokens. Assignments are grouped by expert, and the blocks of an expert's tile
// stream its weights (gemv_tiles.cuh) past the few tokens that chose it. Most experts are read once, at the
// speed of reading.
#pragma once

#include "backend/cuda/kernels/moe/expert_tile.h"
#include "backend/cuda/runtime/launch_context.h"
#include "backend/cuda/weights/expert_table.h"
#include "ops/expert_terms.h"

namespace dsv4::backend::cuda {

// The assignments (token * top_k + slot) of tile t are order[begin] and those behind it; tiles of no
// assignments come last.
struct ExpertGroups {
  const ExpertTile* tiles = nullptr;
  int max_tiles = 0;
  int tokens_per_tile = 0;
  const int32_t* order = nullptr;
};

// The terms of grouped assignments, which are bf16.
Status GroupedGemvStream(LaunchContext& context, const ExpertTable& table, const ExpertGroups& groups,
                         const ops::ExpertTermsArgs& args);

}  // namespace dsv4::backend::cuda
