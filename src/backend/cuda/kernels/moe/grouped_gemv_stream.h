// routed_experts for some tens of tokens: assignments are grouped by expert, and the blocks of an expert's tile stream its weights
// (gemv_tiles.cuh) past the few tokens that chose it. Most experts are read once, at the speed of reading.
#pragma once

#include "backend/cuda/kernels/sm100/block_scaled.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "ops/expert_terms.h"

namespace dsv4::backend::cuda {

// Assignments that a tile takes; 0: not for these kernels. Too many tokens for those that read an expert for each token, too few
// for the matrix unit, experts that are stored alike and are chosen by few tokens each.
int GroupedTokensPerTile(const ExpertTable& table, const ops::ExpertTermsArgs& args);

// The assignments (token * top_k + slot) of tile t are order[begin] and those behind it; tiles of no assignments come last.
struct ExpertGroups {
  const ExpertTile* tiles = nullptr;
  int max_tiles = 0;
  int tokens_per_tile = 0;
  const int32_t* order = nullptr;
};

// The terms of grouped assignments, which are bf16.
Status StreamGroupedExperts(CudaContext& context, const ExpertTable& table, const ExpertGroups& groups,
                            const ops::ExpertTermsArgs& args);

}  // namespace dsv4::backend::cuda
