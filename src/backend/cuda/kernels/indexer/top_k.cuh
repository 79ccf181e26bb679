// Radix selection by the threads of a block. Passes of eight bits, the high ones first, find the k-th highest
// key. A last one writes those above it and the first of those equal to it.
#pragma once

#include <cub/warp/warp_scan.cuh>

#include "backend/cuda/device/numeric/ordered_key.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/sync/device_fault.cuh"
#include "backend/cuda/kernels/indexer/top_k.h"

namespace dsv4::backend::cuda {

inline constexpr int kTopKBits = 8;
inline constexpr int kTopKBuckets = 1 << kTopKBits;
// Histograms for many keys, several a block, lane by lane in turn. Scores have few exponents, and a warp that
// counts in one bin waits for itself.
inline constexpr int kTopKHistograms = 16;

// The known high bits of the k-th highest key, and how many of the keys that begin with them are chosen.
struct Threshold {
  uint32_t prefix = 0;
  int left = 0;
};

// The bucket in which, counted from the highest, the k-th key lies. One warp calls it, eight buckets a lane;
// one lane writes.
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

// Items are entries, or blocks of them.
struct SameItems {
  __device__ int operator()(int item) const { return item; }
};

// Writes the chosen ones of keys [begin, end), which follow `before`, by one warp. `index`: of key 0, an
// item; named(item) is written.
template <typename KeyAt, typename Named = SameItems>
__device__ void WriteChosen(KeyAt key_at, int begin, int end, int index, Threshold threshold, Counts before,
                            int32_t* selected, Named named = {}) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned lower = (1U << lane) - 1;
#pragma unroll 4
  for (int first = begin; first < end; first += 32) {
    const Ballots seen = Ask(key_at, first + lane, end, threshold.prefix);
    const Counts mine = before + Counts{__popc(seen.above & lower), __popc(seen.equal & lower)};
    const bool chosen =
        (seen.above >> lane & 1) != 0 || ((seen.equal >> lane & 1) != 0 && mine.equal < threshold.left);
    if (chosen) selected[mine.above + min(mine.equal, threshold.left)] = named(index + first + lane);
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

// Every item is chosen; `count` threads.
template <typename Named = SameItems>
__device__ inline void WriteAll(int num_items, int top_k, int count, int32_t* selected, Named named = {}) {
  for (int i = static_cast<int>(threadIdx.x); i < top_k; i += count)
    selected[i] = i < num_items ? named(i) : -1;
}

// The items that a token chooses from: the entries that it sees, blocks of them, or those in listed blocks.
struct Items {
  int count = 0;
  int block_size = 1;
  const int32_t* blocks = nullptr;  // Listed.

  __device__ int operator()(int item) const {
    return blocks == nullptr ? item : blocks[item / block_size] * block_size + item % block_size;
  }
};
// By a block of kThreads, all of which call it.
template <int kThreads>
__device__ Items ItemsOf(const SequenceTable& table, const TopKParams& p, int64_t token) {
  const int visible = static_cast<int>(NumVisible(table.Of(token), token, p.ratio));
  if (p.within == nullptr) return {.count = (visible + p.block_size - 1) / p.block_size};
  const int32_t* const blocks = p.within + token * p.num_blocks;
  int num_blocks = 0;
  for (int first = 0; first < p.num_blocks; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    num_blocks += __syncthreads_count(i < p.num_blocks && blocks[i] >= 0);
  }
  if (num_blocks == 0) return {};
  // Blocks ascend, so the last one alone may be cut short, or lie where no entry is.
  const int last = blocks[num_blocks - 1];
  const int begin = last * p.block_size;
  if (begin >= visible) {
    if (threadIdx.x == 0)
      ReportFault(p.fault, FaultKind::kCandidateBlock, token, num_blocks - 1, last, visible);
    return {};
  }
  return {.count = (num_blocks - 1) * p.block_size + min(p.block_size, visible - begin),
          .block_size = p.block_size,
          .blocks = blocks};
}

}  // namespace dsv4::backend::cuda
