// Few entries are the work of one block, and where there are no clusters all; else many are divided over one
// (top_k_cluster.cu).
#include <cfloat>

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/indexer/top_k.cuh"
#include "backend/cuda/kernels/indexer/top_k.h"
#include "backend/cuda/lowering/select/indexer.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;

// One block a token. Keys of bf16 scores are their 16 high bits, here and below.
template <typename Key>
__global__ void __launch_bounds__(kThreads)
    TopKBlockKernel(const __grid_constant__ SequenceTable table, const TopKParams p) {
  constexpr int kKeyBits = 8 * static_cast<int>(sizeof(Key));
  __shared__ int histogram[kTopKBuckets];
  __shared__ Threshold shared_threshold;
  BeginKernel();

  const int64_t token = p.first_token + blockIdx.x;
  const Items items = ItemsOf<kThreads>(table, p, token);
  const int t = static_cast<int>(threadIdx.x);
  int32_t* const selected = p.selected + token * p.top_k;
  if (items.count <= p.top_k)
    return WriteAll(items.count, static_cast<int>(p.top_k), kThreads, selected, items);
  const float* const scores = p.scores + blockIdx.x * p.stride;
  const auto key_at = [&](int j) { return OrderedKey(scores[items(j)]) >> (32 - kKeyBits); };

  Threshold threshold{.prefix = 0, .left = static_cast<int>(p.top_k)};
  for (int shift = kKeyBits - kTopKBits; shift >= 0; shift -= kTopKBits) {
    if (t < kTopKBuckets) histogram[t] = 0;
    __syncthreads();
#pragma unroll 4
    for (int j = t; j < items.count; j += kThreads) {
      const uint32_t key = key_at(j);
      if (shift == kKeyBits - kTopKBits ||
          key >> (shift + kTopKBits) == threshold.prefix >> (shift + kTopKBits))
        atomicAdd(&histogram[key >> shift & (kTopKBuckets - 1)], 1);
    }
    __syncthreads();
    if (t < 32) NextThreshold(histogram, shift, threshold, &shared_threshold);
    __syncthreads();
    threshold = shared_threshold;
  }

  const int2 share = WarpShare<kWarps>(items.count);
  const Before before = SumOverWarps<kWarps>(Count(key_at, share.x, share.y, threshold.prefix));
  WriteChosen(key_at, share.x, share.y, 0, threshold, before.warps, selected, items);
}

// Scores of blocks: the highest of a block's visible entries; that of the newest visible entry is above all.
// A thread a block.
constexpr int kScoreThreads = 256;

// Grid: tokens, blocks by kScoreThreads.
__global__ void __launch_bounds__(kScoreThreads)
    TopKBlockScoresKernel(const __grid_constant__ SequenceTable table, const BlockScoreParams p) {
  BeginKernel();
  const int64_t token = p.first_token + blockIdx.x;
  const auto visible = static_cast<int>(NumVisible(table.Of(token), token, p.ratio));
  const int num_blocks = (visible + p.block_size - 1) / p.block_size;
  const int block = static_cast<int>(blockIdx.y) * kScoreThreads + static_cast<int>(threadIdx.x);
  if (num_blocks <= p.most_unscored || block >= num_blocks) return;
  const float* const scores = p.scores + blockIdx.x * p.max_visible;
  float best = -INFINITY;  // NaN counts as that.
  const int end = min(visible, (block + 1) * p.block_size);
  for (int j = block * p.block_size; j < end; ++j) best = fmaxf(best, scores[j]);
  best = block == num_blocks - 1 ? INFINITY : fminf(best, FLT_MAX);
  p.blocks[blockIdx.x * p.max_blocks + block] = best;
}

}  // namespace

void LaunchTopK(LaunchContext& context, const SequenceTable& table, const TopKParams& p, TopKPath kernel,
                int64_t num_tokens) {
  if (kernel == TopKPath::kBlock) {
    context.Launch(p.rounded ? TopKBlockKernel<uint16_t> : TopKBlockKernel<uint32_t>,
                   static_cast<unsigned>(num_tokens), kThreads, 0, table, p);
    return;
  }
  LaunchTopKCluster(context, table, p, num_tokens);
}

void LaunchBlockScores(LaunchContext& context, const SequenceTable& table, const BlockScoreParams& params,
                       unsigned num_tokens) {
  const dim3 grid(num_tokens, static_cast<unsigned>(CeilDiv(params.max_blocks, int64_t{kScoreThreads})));
  context.Launch(TopKBlockScoresKernel, grid, kScoreThreads, 0, table, params);
}

}  // namespace dsv4::backend::cuda
