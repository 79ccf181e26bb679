// Routed experts of FP4 for 9 to 64 tokens whose assignments are grouped by expert (grouped_gemv_stream.h). A
// block an SM takes an equal run of all row tiles of all chosen experts.
#pragma once

#include "backend/cuda/kernels/moe/grouped_gemv_stream.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {

// GroupedGemvStream for experts that RunTokensPerTile takes.
Status GroupedGemvRuns(LaunchContext& context, const ExpertTable& table, const ExpertGroups& groups,
                       const ops::ExpertTermsArgs& args);

}  // namespace dsv4::backend::cuda
