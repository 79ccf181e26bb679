// grouped_linear of a few tokens and the linear of what it gives, in one launch.
#pragma once

#include "backend/cuda/collectives/ll_exchange.h"
#include "backend/cuda/kernels/gemm/gemv_stream.h"

namespace dsv4::backend::cuda {

// Whether this linear has become part of launch `before`, the grouped linear of `groups` alone, whose output is its activations: all
// blocks meet in between (grid_barrier.cuh), with the second's weights in flight.
bool LinearJoinsGroups(CudaContext& context, uint64_t before, const GemvArgs& groups, const GemvArgs& args);

// Whether such a launch, if it is the last, now also sends what its second linear gives, `count` floats at `values`, to all ranks of
// `links`: this rank's part of a LL sum, which need not send it then (PeerLinks::pushed) and finds the others' sooner.
bool PairPushesSum(CudaContext& context, const PeerLinks& links, const float* values, int64_t count);

}  // namespace dsv4::backend::cuda
