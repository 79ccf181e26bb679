// Kernel that sorts assignments of tokens by expert and cuts them into tiles of a GEMM.
#include <algorithm>

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/sync/device_fault.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/moe/expert_tiles.h"
#include "backend/cuda/kernels/packing/operand_layout.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kGroupThreads = 256;

__device__ __forceinline__ int TilesOf(const ExpertGrouping& g, int count) {
  return (count + g.tokens_per_tile - 1) / g.tokens_per_tile;
}
__device__ __forceinline__ int RowsOf(int count) {
  constexpr int kRows = static_cast<int>(kPackedRows);
  return (count + kRows - 1) / kRows * kRows;
}

// One block an expert.
__global__ void __launch_bounds__(kGroupThreads)
    ExpertTilesCountKernel(const int32_t* indices, int top_k, const ExpertGrouping g, FaultKind wrong_index,
                           Fault* fault) {
  BeginKernel();
  const int expert = static_cast<int>(blockIdx.x);
  int mine = 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < g.num_assignments; i += kGroupThreads) {
    const int32_t index = indices[i];
    mine += index - g.first_expert == expert ? 1 : 0;
    if (expert == 0 && (index < 0 || index >= g.num_experts))
      ReportFault(fault, wrong_index, i / top_k, i % top_k, index, g.num_experts);
  }
  mine = BlockSum(mine);
  if (threadIdx.x == 0) g.counts[expert] = mine;
}

// Votes of a warp in one step: a few runs of 32 assignments, and which of them are an expert's.
constexpr int kRuns = 4;

struct Step {
  unsigned found[kRuns];
  int count = 0;

  __device__ __forceinline__ Step(const int32_t* indices, const ExpertGrouping& g, int first, int expert) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      const int i = first + run * 32 + lane;
      found[run] = __ballot_sync(kWholeWarp, i < g.num_assignments && indices[i] - g.first_expert == expert);
      count += __popc(found[run]);
    }
  }
};

// One block an expert: finds its offset behind the experts before it, its assignments in order, and cuts them
// into tiles of about equal size. Each warp has a stretch of the assignments, which it counts first.
__global__ void __launch_bounds__(kGroupThreads)
    ExpertTilesPlaceKernel(const int32_t* indices, const ExpertGrouping g) {
  BeginKernel();
  constexpr int kWarps = kGroupThreads / 32;
  __shared__ int warp_counts[kWarps];
  const int expert = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  int rows_before = 0;
  int tiles_before = 0;
  for (int e = thread; e < expert; e += kGroupThreads) {
    rows_before += RowsOf(g.counts[e]);
    tiles_before += TilesOf(g, g.counts[e]);
  }
  const int begin = BlockSum(rows_before);
  __syncthreads();
  const int first_tile = BlockSum(tiles_before);
  const int count = g.counts[expert];
  const int num_tiles = TilesOf(g, count);
  for (int t = thread; t < num_tiles; t += kGroupThreads) {
    const int size = RowsOf((count + num_tiles - 1) / num_tiles);
    g.tiles[first_tile + t] = {expert, begin + t * size, min(size, count - t * size)};
  }

  constexpr int kStep = kRuns * 32;
  const int steps = (g.num_assignments + kStep * kWarps - 1) / (kStep * kWarps);
  const int stretch = warp * steps * kStep;
  int mine = 0;
#pragma unroll 4
  for (int step = 0; step < steps; ++step) mine += Step(indices, g, stretch + step * kStep, expert).count;
  if (lane == 0) warp_counts[warp] = mine;
  __syncthreads();
  int place = begin;
  for (int w = 0; w < warp; ++w) place += warp_counts[w];
#pragma unroll 4
  for (int step = 0; step < steps; ++step) {
    const Step here(indices, g, stretch + step * kStep, expert);
    if (here.count == 0) continue;
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      const unsigned found = here.found[run];
      if ((found >> lane & 1U) != 0)
        g.order[place + __popc(found & ((1U << lane) - 1U))] = stretch + step * kStep + run * 32 + lane;
      place += __popc(found);
    }
  }
  const bool last = expert + 1 == g.num_here;
  const int end = last ? g.max_rows : begin + RowsOf(count);
  for (int row = begin + count + thread; row < end; row += kGroupThreads) g.order[row] = -1;
  if (last && thread == 0) *g.num_tiles = first_tile + num_tiles;
}

}  // namespace

Result<ExpertGrouping> GroupByExpert(LaunchContext& context, const TermsWork& work, int tokens_per_tile) {
  const ops::ExpertTermsArgs& args = work.args;
  const int64_t num_assignments = args.indices.num_elements();
  const auto num_here = static_cast<int64_t>(args.experts.size());
  const int64_t used = std::min(num_assignments, num_here);
  ExpertGrouping g = {};
  g.tokens_per_tile = tokens_per_tile;
  g.first_expert = static_cast<int>(args.first_expert);
  g.num_here = static_cast<int>(num_here);
  g.num_experts = static_cast<int>(args.num_experts);
  g.num_assignments = static_cast<int>(num_assignments);
  g.max_rows =
      static_cast<int>(CeilDiv(num_assignments + used * (kPackedRows - 1), kPackedRows) * kPackedRows);
  DSV4_ASSIGN_OR_RETURN(g.counts, context.Scratch<int32_t>(num_here));
  DSV4_ASSIGN_OR_RETURN(g.order, context.Scratch<int32_t>(g.max_rows));
  DSV4_ASSIGN_OR_RETURN(g.tiles, context.Scratch<ExpertTile>(num_assignments / tokens_per_tile + used));
  DSV4_ASSIGN_OR_RETURN(g.num_tiles, context.Scratch<int32_t>(1));
  const auto blocks = static_cast<unsigned>(num_here);
  const auto* const indices = args.indices.as<const int32_t>();
  context.Launch(ExpertTilesCountKernel, blocks, kGroupThreads, 0, indices,
                 static_cast<int>(args.indices.shape[1]), g, work.wrong_index, context.fault());
  context.Launch(ExpertTilesPlaceKernel, blocks, kGroupThreads, 0, indices, g);
  return g;
}

}  // namespace dsv4::backend::cuda
