// Assignments of tokens to experts, sorted by expert and cut into tiles for the matrix kernels for many
// tokens.
#pragma once

#include "backend/cuda/kernels/moe/expert_tile.h"
#include "backend/cuda/kernels/moe/terms_work.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {

// Assignments by expert that is here, each expert's in their own order and beginning at a multiple of
// kPackedRows; all in device memory.
struct ExpertGrouping {
  int32_t* counts;    // [num_here]
  int32_t* order;     // [max_rows], the assignment of a packed row, -1 where there is none
  ExpertTile* tiles;  // [max_tiles], an expert's of about equal size
  int32_t* num_tiles;
  int first_expert;
  int num_here;     // The experts with the ids from first_expert on.
  int num_experts;  // Experts over all ranks.
  int num_assignments;
  int max_rows;
  int tokens_per_tile;  // At most.
};

// Scratch of the op that runs.
Result<ExpertGrouping> GroupByExpert(LaunchContext& context, const TermsWork& work, int tokens_per_tile);

}  // namespace dsv4::backend::cuda
