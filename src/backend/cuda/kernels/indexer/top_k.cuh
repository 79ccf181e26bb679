// Radix selection by the threads of a block: passes of eight bits, the high ones first, find the k-th highest key; a last one writes
// those above it and the first of those equal to it.
#pragma once

#include <cub/warp/warp_scan.cuh>

#include "backend/cuda/device/numeric/ordered_key.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"

namespace dsv4::backend::cuda {

inline constexpr int kTopKBits = 8;
inline constexpr int kTopKBuckets = 1 << kTopKBits;
// Histograms for many keys, several a block, lane by lane in turn: scores have few exponents, and a warp that
// counts in one place waits for itself.
inline constexpr int kTopKHistograms = 16;

// The high bits of the k-th highest key as far as they are known, and how many of the keys that begin with them are chosen.
struct Threshold {
  uint32_t prefix = 0;
  int left = 0;
};

// The bucket in which, counted from the highest, the k-th key lies. One warp calls it, eight buckets a lane; one lane writes.
__device__ inline void NextThreshold(const int* histogram, int shift, Threshold now, Threshold* next) {
  using Scan = cub::WarpScan<int>;
  __shared__ typename Scan::TempStorage storage;
  constexpr int kEach = kTopKBuckets / 32;
  const int highest = kTopKBuckets - 1 - static_cast<int>(threadIdx.x) * kEach;
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

// Votes of a warp on keys [j, j + 32) that lie below `end`: a bit a lane.
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

// Counts of keys [begin, end), by one warp.
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

// The sum of what the warps in front of this one brought, and of all. A second call wants a barrier in front.
struct Before {
  Counts warps;
  Counts block;
};
template <int kWarps>
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
template <int kWarps>
__device__ int2 WarpShare(int count) {
  const int share = (count + 32 * kWarps - 1) / (32 * kWarps) * 32;
  const int begin = min(count, static_cast<int>(threadIdx.x) / 32 * share);
  return make_int2(begin, min(count, begin + share));
}

// Every entry is chosen; `count` threads.
__device__ inline void WriteAll(int visible, int top_k, int count, int32_t* selected) {
  for (int i = static_cast<int>(threadIdx.x); i < top_k; i += count) selected[i] = i < visible ? i : -1;
}

}  // namespace dsv4::backend::cuda
