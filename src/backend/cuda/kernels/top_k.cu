// Radix selection: passes of eight bits, the high ones first, find the k-th highest key; a last one writes those above it and
// the first of those equal to it. Few entries are the work of one block; many are divided over a cluster of blocks, which
// keep their part in shared memory and add up their counts through each other's.
#include <cooperative_groups.h>

#include <cub/warp/warp_scan.cuh>

#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/ordered_key.cuh"
#include "backend/cuda/kernels/reduce.cuh"
#include "backend/cuda/kernels/top_k.h"

namespace dsv4::backend::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kBits = 8;
constexpr int kBuckets = 1 << kBits;
// A cluster's kernel counts in several histograms a block, lane by lane in turn: scores have few exponents, and a warp
// that counts in one place waits for itself.
constexpr int kHistograms = 16;
constexpr int kClusterBlocks = 8;
// Fewer entries are faster on one block.
constexpr int64_t kClusterFrom = 4096;

// The high bits of the k-th highest key as far as they are known, and how many of the keys that begin with them are chosen.
struct Threshold {
  uint32_t prefix = 0;
  int left = 0;
};

// The bucket in which, counted from the highest, the k-th key lies. One warp calls it, eight buckets a lane; one lane writes.
__device__ void NextThreshold(const int* histogram, int shift, Threshold now, Threshold* next) {
  using Scan = cub::WarpScan<int>;
  __shared__ typename Scan::TempStorage storage;
  constexpr int kEach = kBuckets / 32;
  const int highest = kBuckets - 1 - static_cast<int>(threadIdx.x) * kEach;
  int mine = 0;
  for (int i = 0; i < kEach; ++i) mine += histogram[highest - i];
  int above = 0;
  Scan(storage).ExclusiveSum(mine, above);
  if (above < now.left && now.left <= above + mine) {
    int bucket = highest;
    while (above + histogram[bucket] < now.left) above += histogram[bucket--];
    *next = {now.prefix | static_cast<uint32_t>(bucket) << shift, now.left - above};
  }
}

// Keys above the threshold and equal to it; those of several pieces add up.
struct Counts {
  int above = 0;
  int equal = 0;
  __device__ Counts operator+(const Counts& other) const {
    return {above + other.above, equal + other.equal};
  }
};

// What a warp sees of keys [j, j + 32) that lie below `end`: a bit a lane.
struct Ballots {
  unsigned above = 0;
  unsigned equal = 0;
};

template <typename KeyAt>
__device__ Ballots Ask(KeyAt key_at, int j, int end, uint32_t threshold) {
  const bool inside = j < end;
  const uint32_t key = inside ? key_at(j) : 0;
  return {__ballot_sync(kWholeWarp, inside && key > threshold),
          __ballot_sync(kWholeWarp, inside && key == threshold)};
}

// Of keys [begin, end), by one warp.
template <typename KeyAt>
__device__ Counts Count(KeyAt key_at, int begin, int end, uint32_t threshold) {
  Counts counts;
#pragma unroll 4
  for (int j = begin + static_cast<int>(threadIdx.x) % 32; j - static_cast<int>(threadIdx.x) % 32 < end;
       j += 32) {
    const Ballots seen = Ask(key_at, j, end, threshold);
    counts = counts + Counts{__popc(seen.above), __popc(seen.equal)};
  }
  return counts;
}

// Writes the chosen ones of keys [begin, end), which follow `before`, by one warp. `index`: of key 0.
template <typename KeyAt>
__device__ void WriteChosen(KeyAt key_at, int begin, int end, int index, Threshold threshold, Counts before,
                            int32_t* selected) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned lower = (1U << lane) - 1;
#pragma unroll 4
  for (int first = begin; first < end; first += 32) {
    const Ballots seen = Ask(key_at, first + lane, end, threshold.prefix);
    const Counts mine = before + Counts{__popc(seen.above & lower), __popc(seen.equal & lower)};
    const bool chosen =
        (seen.above >> lane & 1) != 0 || ((seen.equal >> lane & 1) != 0 && mine.equal < threshold.left);
    if (chosen) selected[mine.above + min(mine.equal, threshold.left)] = index + first + lane;
    before = before + Counts{__popc(seen.above), __popc(seen.equal)};
  }
}

// The sum of what the warps in front of this one brought, and of all.
struct Before {
  Counts warps;
  Counts block;
};
__device__ Before SumOverWarps(Counts mine) {
  __shared__ Counts of_warp[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x % 32 == 0) of_warp[warp] = mine;
  __syncthreads();
  Before sums;
  for (int i = 0; i < kWarps; ++i) {
    if (i == warp) sums.warps = sums.block;
    sums.block = sums.block + of_warp[i];
  }
  return sums;
}

// A warp's share of `count` keys, whole groups of 32.
__device__ int2 WarpShare(int count) {
  const int share = (count + 32 * kWarps - 1) / (32 * kWarps) * 32;
  const int begin = min(count, static_cast<int>(threadIdx.x) / 32 * share);
  return make_int2(begin, min(count, begin + share));
}

// Every entry is chosen; `count` threads.
__device__ void WriteAll(int visible, int top_k, int count, int32_t* selected) {
  for (int i = static_cast<int>(threadIdx.x); i < top_k; i += count) selected[i] = i < visible ? i : -1;
}

// One block a token.
__global__ void __launch_bounds__(kThreads)
    BlockTopKKernel(const __grid_constant__ SequenceTable table, const TopKParams p) {
  __shared__ int histogram[kBuckets];
  __shared__ Threshold shared_threshold;
  BeginKernel();

  const int64_t token = p.first_token + blockIdx.x;
  const int visible = static_cast<int>(NumVisible(table.Of(token), token, p.ratio));
  const int t = static_cast<int>(threadIdx.x);
  int32_t* const selected = p.selected + token * p.top_k;
  if (visible <= p.top_k) return WriteAll(visible, static_cast<int>(p.top_k), kThreads, selected);
  const float* const scores = p.scores + blockIdx.x * p.max_visible;
  const auto key_at = [&](int j) { return OrderedKey(scores[j]); };

  Threshold threshold{.prefix = 0, .left = static_cast<int>(p.top_k)};
  for (int shift = 32 - kBits; shift >= 0; shift -= kBits) {
    if (t < kBuckets) histogram[t] = 0;
    __syncthreads();
#pragma unroll 4
    for (int j = t; j < visible; j += kThreads) {
      const uint32_t key = key_at(j);
      if (shift == 32 - kBits || key >> (shift + kBits) == threshold.prefix >> (shift + kBits))
        atomicAdd(&histogram[key >> shift & (kBuckets - 1)], 1);
    }
    __syncthreads();
    if (t < 32) NextThreshold(histogram, shift, threshold, &shared_threshold);
    __syncthreads();
    threshold = shared_threshold;
  }

  const int2 share = WarpShare(visible);
  const Before before = SumOverWarps(Count(key_at, share.x, share.y, threshold.prefix));
  WriteChosen(key_at, share.x, share.y, 0, threshold, before.warps, selected);
}

// A cluster of blocks a token, each with a piece of the entries. Keys of bf16 scores are their 16 high bits. The first `held` keys
// of a piece lie in shared memory, the others are made again whenever they are wanted.
template <typename Key>
__global__ void __cluster_dims__(kClusterBlocks) __launch_bounds__(kThreads)
    ClusterTopKKernel(const __grid_constant__ SequenceTable table, const TopKParams p, const int held) {
  constexpr int kKeyBits = 8 * static_cast<int>(sizeof(Key));
  extern __shared__ __align__(16) unsigned char shared_keys[];
  __shared__ int histograms[kHistograms]
                           [kBuckets + 1];  // One more, so that equal buckets lie in different banks.
  __shared__ int mine[2]
                     [kBuckets];  // This block's histogram, read by the others; of this pass and of the last.
  __shared__ int all[kBuckets];
  __shared__ Threshold shared_threshold;
  __shared__ Counts my_counts;
  BeginKernel();

  const cg::cluster_group cluster = cg::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank());
  const int64_t row = blockIdx.x / kClusterBlocks;
  const int64_t token = p.first_token + row;
  const int visible = static_cast<int>(NumVisible(table.Of(token), token, p.ratio));
  const int t = static_cast<int>(threadIdx.x);
  int32_t* const selected = p.selected + token * p.top_k;
  if (visible <= p.top_k) {
    if (rank == 0) WriteAll(visible, static_cast<int>(p.top_k), kThreads, selected);
    return;
  }
  const int piece = (visible + kClusterBlocks - 1) / kClusterBlocks;
  const int first = min(visible, rank * piece);
  const int num_keys = min(visible - first, piece);
  const float* const scores = p.scores + row * p.max_visible + first;
  auto* const keys = reinterpret_cast<Key*>(shared_keys);
  const auto make_key = [&](int j) { return static_cast<Key>(OrderedKey(scores[j]) >> (32 - kKeyBits)); };
#pragma unroll 8
  for (int j = t; j < min(num_keys, held); j += kThreads) keys[j] = make_key(j);
  __syncthreads();
  const auto key_at = [&](int j) { return uint32_t{j < held ? keys[j] : make_key(j)}; };

  Threshold threshold{.prefix = 0, .left = static_cast<int>(p.top_k)};
  for (int shift = kKeyBits - kBits, pass = 0; shift >= 0; shift -= kBits, pass ^= 1) {
    for (int i = t; i < kHistograms * kBuckets; i += kThreads) histograms[i / kBuckets][i % kBuckets] = 0;
    __syncthreads();
    int* const histogram = histograms[t % kHistograms];
#pragma unroll 4
    for (int j = t; j < num_keys; j += kThreads) {
      const uint32_t key = key_at(j);
      if (shift == kKeyBits - kBits || key >> (shift + kBits) == threshold.prefix >> (shift + kBits))
        atomicAdd(&histogram[key >> shift & (kBuckets - 1)], 1);
    }
    __syncthreads();
    if (t < kBuckets) {
      int sum = 0;
      for (int i = 0; i < kHistograms; ++i) sum += histograms[i][t];
      mine[pass][t] = sum;
    }
    // Who comes out of this has written its histogram of the pass and has read all of the pass before.
    cluster.sync();
    if (t < kBuckets) {
      int sum = 0;
      for (int r = 0; r < kClusterBlocks; ++r) sum += cluster.map_shared_rank(&mine[pass][0], r)[t];
      all[t] = sum;
    }
    __syncthreads();
    if (t < 32) NextThreshold(all, shift, threshold, &shared_threshold);
    __syncthreads();
    threshold = shared_threshold;
  }

  const int2 share = WarpShare(num_keys);
  const Before before = SumOverWarps(Count(key_at, share.x, share.y, threshold.prefix));
  if (t == 0) my_counts = before.block;
  cluster.sync();
  Counts first_counts = before.warps;
  for (int r = 0; r < rank; ++r) first_counts = first_counts + *cluster.map_shared_rank(&my_counts, r);
  WriteChosen(key_at, share.x, share.y, first, threshold, first_counts, selected);
  cluster.sync();  // Nobody leaves while its counts may still be read.
}

template <typename Key>
uint64_t LaunchCluster(CudaContext& context, const SequenceTable& table, const TopKParams& p,
                       int64_t num_tokens) {
  constexpr int64_t kMaxSharedBytes = 128 * 1024;
  const int64_t piece = (p.max_visible + kClusterBlocks - 1) / kClusterBlocks;
  const int64_t held = std::min(piece, kMaxSharedBytes / static_cast<int64_t>(sizeof(Key)));
  return context.queue().Launch(ClusterTopKKernel<Key>, static_cast<unsigned>(num_tokens * kClusterBlocks),
                                kThreads, static_cast<size_t>(held) * sizeof(Key), table, p,
                                static_cast<int>(held));
}

}  // namespace

uint64_t SelectTopK(CudaContext& context, const SequenceTable& table, const TopKParams& p,
                    int64_t num_tokens) {
  if (p.scores == nullptr || p.max_visible < kClusterFrom)
    return context.queue().Launch(BlockTopKKernel, static_cast<unsigned>(num_tokens), kThreads, 0, table, p);
  if (p.rounded) return LaunchCluster<uint16_t>(context, table, p, num_tokens);
  return LaunchCluster<uint32_t>(context, table, p, num_tokens);
}

}  // namespace dsv4::backend::cuda
