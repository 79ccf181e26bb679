// grouped_linear of a few tokens and the linear of what it gives, in one launch.
#pragma once

#include "backend/cuda/kernels/linear_stream.h"

namespace dsv4::backend::cuda {

// Whether this linear has become part of launch `before`, the grouped linear of `groups` alone, whose output is its activations: all
// blocks meet in between (grid_barrier.cuh), with the second's weights under way.
bool LinearJoinsGroups(CudaContext& context, uint64_t before, const StreamLinearArgs& groups,
                       const StreamLinearArgs& args);

}  // namespace dsv4::backend::cuda
