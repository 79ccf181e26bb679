// Op expert_terms of experts of any formats. The assignments (token, slot) of the experts that are here are
// grouped by expert on the device. Gate and up, activation and down follow, each one launch for all experts.
// The host never learns which experts were chosen. It launches as many tiles as there could be, and those
// left over end at once.
#pragma once

#include "backend/cuda/kernels/moe/grouped_gemv_stream.h"
#include "backend/cuda/kernels/moe/terms_work.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {

// Assignments by expert, in tiles of up to tokens_per_tile. Scratch of the op that runs.
Result<ExpertGroups> GroupAssignments(LaunchContext& context, const TermsWork& work, int tokens_per_tile);

// `block_scaled`: by Blackwell's products (kernels/sm100/block_scaled.h), which its modes ask for.
Status ExpertTermsOfAny(LaunchContext& context, const ExpertTable& table, bool block_scaled,
                        const TermsWork& work);

}  // namespace dsv4::backend::cuda
