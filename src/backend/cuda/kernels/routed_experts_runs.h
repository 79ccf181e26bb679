// Routed experts of FP4 for some tens of tokens whose assignments are grouped by expert (routed_experts_grouped.h): a block a
// processor takes an equal run of all row tiles of all chosen experts.
#pragma once

#include "backend/cuda/cuda_context.h"
#include "backend/cuda/kernels/routed_experts_grouped.h"

namespace dsv4::backend::cuda {

// Assignments that a tile takes; 0: not for these kernels.
int RunTokensPerTile(const ExpertTable& table);

// StreamGroupedExperts for experts that RunTokensPerTile takes.
Status RunGroupedExperts(CudaContext& context, const ExpertTable& table, const ExpertGroups& groups,
                         const ops::ExpertTermsArgs& args);

}  // namespace dsv4::backend::cuda
