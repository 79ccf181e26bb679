// Scores of blocks of entries: the highest of a block's visible entries; that of the newest visible entry is above all. A thread a block.
#include <cfloat>

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/indexer/block_scores.h"
#include "backend/cuda/runtime/cuda_context.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 256;

// Grid: tokens, blocks by kThreads.
__global__ void __launch_bounds__(kThreads)
    BlockScoresKernel(const __grid_constant__ SequenceTable table, const BlockScoreParams p) {
  BeginKernel();
  const int64_t token = p.first_token + blockIdx.x;
  const auto visible = static_cast<int>(NumVisible(table.Of(token), token, p.ratio));
  const int num_blocks = (visible + p.block_size - 1) / p.block_size;
  const int block = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (num_blocks <= p.most_unscored || block >= num_blocks) return;
  const float* const scores = p.scores + blockIdx.x * p.max_visible;
  float best = -INFINITY;  // NaN counts as that.
  const int end = min(visible, (block + 1) * p.block_size);
  for (int j = block * p.block_size; j < end; ++j) best = fmaxf(best, scores[j]);
  best = block == num_blocks - 1 ? INFINITY : fminf(best, FLT_MAX);
  p.blocks[blockIdx.x * p.max_blocks + block] = best;
}

}  // namespace

void LaunchBlockScores(CudaContext& context, const SequenceTable& table, const BlockScoreParams& params,
                       unsigned num_tokens) {
  const dim3 grid(num_tokens, static_cast<unsigned>(CeilDiv(params.max_blocks, int64_t{kThreads})));
  context.Launch(BlockScoresKernel, grid, kThreads, 0, table, params);
}

}  // namespace dsv4::backend::cuda
