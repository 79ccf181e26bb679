// A cluster of blocks divides the entries of a token; they keep their part in shared memory and add up their
// counts through each other's.
#include <cooperative_groups.h>

#include <algorithm>

#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/indexer/top_k.cuh"
#include "backend/cuda/kernels/indexer/top_k.h"
#include "backend/cuda/lowering/select/indexer.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;

// A cluster of blocks a token, each with a piece of the entries. The first `held` keys
// of a piece lie in shared memory, the others are made again whenever they are wanted.
template <typename Key, int kClusterBlocks>
__global__ void __cluster_dims__(kClusterBlocks) __launch_bounds__(kThreads)
    TopKClusterKernel(const __grid_constant__ SequenceTable table, const TopKParams p, const int held) {
  constexpr int kKeyBits = 8 * static_cast<int>(sizeof(Key));
  extern __shared__ __align__(16) unsigned char shared_keys[];
  __shared__ int histograms[kTopKHistograms]
                           [kTopKBuckets + 1];  // One more, so that equal buckets lie in different banks.
  __shared__ int
      mine[2][kTopKBuckets];  // This block's histogram, read by the others; of this pass and of the last.
  __shared__ int all[kTopKBuckets];
  __shared__ Threshold shared_threshold;
  __shared__ Counts my_counts;
  BeginKernel();

  const cg::cluster_group cluster = cg::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank());
  const int64_t row = blockIdx.x / kClusterBlocks;
  const int64_t token = p.first_token + row;
  const Items items = ItemsOf<kThreads>(table, p, token);
  const int t = static_cast<int>(threadIdx.x);
  int32_t* const selected = p.selected + token * p.top_k;
  if (items.count <= p.top_k) {
    if (rank == 0) WriteAll(items.count, static_cast<int>(p.top_k), kThreads, selected, items);
    return;
  }
  const int piece = (items.count + kClusterBlocks - 1) / kClusterBlocks;
  const int first = min(items.count, rank * piece);
  const int num_keys = min(items.count - first, piece);
  const float* const scores = p.scores + row * p.stride;
  auto* const keys = reinterpret_cast<Key*>(shared_keys);
  const auto make_key = [&](int j) {
    return static_cast<Key>(OrderedKey(scores[items(first + j)]) >> (32 - kKeyBits));
  };
#pragma unroll 8
  for (int j = t; j < min(num_keys, held); j += kThreads) keys[j] = make_key(j);
  __syncthreads();
  const auto key_at = [&](int j) { return uint32_t{j < held ? keys[j] : make_key(j)}; };

  Threshold threshold{.prefix = 0, .left = static_cast<int>(p.top_k)};
  for (int shift = kKeyBits - kTopKBits, pass = 0; shift >= 0; shift -= kTopKBits, pass ^= 1) {
    for (int i = t; i < kTopKHistograms * kTopKBuckets; i += kThreads)
      histograms[i / kTopKBuckets][i % kTopKBuckets] = 0;
    __syncthreads();
    int* const histogram = histograms[t % kTopKHistograms];
#pragma unroll 4
    for (int j = t; j < num_keys; j += kThreads) {
      const uint32_t key = key_at(j);
      if (shift == kKeyBits - kTopKBits ||
          key >> (shift + kTopKBits) == threshold.prefix >> (shift + kTopKBits))
        atomicAdd(&histogram[key >> shift & (kTopKBuckets - 1)], 1);
    }
    __syncthreads();
    if (t < kTopKBuckets) {
      int sum = 0;
      for (int i = 0; i < kTopKHistograms; ++i) sum += histograms[i][t];
      mine[pass][t] = sum;
    }
    // A block that comes out of this has written its histogram of the pass and has read all of the pass
    // before.
    cluster.sync();
    if (t < kTopKBuckets) {
      int sum = 0;
      for (int r = 0; r < kClusterBlocks; ++r) sum += cluster.map_shared_rank(&mine[pass][0], r)[t];
      all[t] = sum;
    }
    __syncthreads();
    if (t < 32) NextThreshold(all, shift, threshold, &shared_threshold);
    __syncthreads();
    threshold = shared_threshold;
  }

  const int2 share = WarpShare<kWarps>(num_keys);
  const Before before = SumOverWarps<kWarps>(Count(key_at, share.x, share.y, threshold.prefix));
  if (t == 0) my_counts = before.block;
  cluster.sync();
  Counts first_counts = before.warps;
  for (int r = 0; r < rank; ++r) first_counts = first_counts + *cluster.map_shared_rank(&my_counts, r);
  WriteChosen(key_at, share.x, share.y, first, threshold, first_counts, selected, items);
  cluster.sync();  // No block leaves while its counts may still be read.
}

// Bytes of keys that a block may hold, beside what the kernel has by name.
int64_t MostBytes(const LaunchContext& context) {
  constexpr size_t kNamed =
      sizeof(int) * (kTopKHistograms * (kTopKBuckets + 1) + 3 * kTopKBuckets) + size_t{1} * 1024;
  return static_cast<int64_t>(std::min(size_t{128} * 1024, context.limits().shared_bytes - kNamed));
}

template <typename Key, int kClusterBlocks>
void LaunchCluster(LaunchContext& context, const SequenceTable& table, const TopKParams& p,
                   int64_t num_tokens) {
  const int64_t piece = (p.max_items + kClusterBlocks - 1) / kClusterBlocks;
  const int64_t held = std::min(piece, MostBytes(context) / static_cast<int64_t>(sizeof(Key)));
  context.Launch(TopKClusterKernel<Key, kClusterBlocks>, static_cast<unsigned>(num_tokens * kClusterBlocks),
                 kThreads, static_cast<size_t>(held) * sizeof(Key), table, p, static_cast<int>(held));
}

template <typename Key>
void LaunchCluster(LaunchContext& context, const SequenceTable& table, const TopKParams& p,
                   int64_t num_tokens) {
  const auto room = [&](int blocks) -> int64_t {
    return context.MostClusters(reinterpret_cast<const void*>(TopKClusterKernel<Key, 16>),
                                static_cast<unsigned>(blocks), kThreads,
                                static_cast<size_t>(MostBytes(context)));
  };
  switch (TopKClusterBlocks(num_tokens, p.max_items, context.limits(), room)) {
    case 2:
      return LaunchCluster<Key, 2>(context, table, p, num_tokens);
    case 4:
      return LaunchCluster<Key, 4>(context, table, p, num_tokens);
    case 16:
      return LaunchCluster<Key, 16>(context, table, p, num_tokens);
    default:
      return LaunchCluster<Key, 8>(context, table, p, num_tokens);
  }
}

}  // namespace

void LaunchTopKCluster(LaunchContext& context, const SequenceTable& table, const TopKParams& p,
                       int64_t num_tokens) {
  if (p.rounded) return LaunchCluster<uint16_t>(context, table, p, num_tokens);
  LaunchCluster<uint32_t>(context, table, p, num_tokens);
}

}  // namespace dsv4::backend::cuda
