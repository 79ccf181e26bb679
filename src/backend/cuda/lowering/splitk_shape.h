// How gemm_splitk_wgmma cuts the columns of a weight. Host code, in every build.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>

#include "backend/cuda/device/sync/grid_barrier.h"
#include "backend/cuda/lowering/gemv_shape.h"
#include "backend/cuda/lowering/rule.h"

namespace dsv4::backend::cuda {

inline constexpr int kSplitKRows = 64;          // A tile's.
inline constexpr int kSplitKChunk = 64;         // Columns that are multiplied at a time.
inline constexpr int kSplitKMaxColumns = 1024;  // Columns of a slice of 64 tokens.

// How the columns of a weight are cut, and for how many tokens a block keeps them.
struct Slices {
  int count = 0;  // 0: not for this kernel.
  int chunks = 0;
  int tokens = 0;  // A block's.

  friend bool operator==(const Slices&, const Slices&) = default;
};

inline int64_t SplitKTiles(int64_t rows_per_group) {
  return (rows_per_group + kSplitKRows - 1) / kSplitKRows;
}
inline int64_t SplitKTokenTiles(const Slices& slices, int64_t num_tokens) {
  return (num_tokens + slices.tokens - 1) / slices.tokens;
}
// Counters in device memory by which slices of a tile count each other.
inline constexpr int64_t kMaxSplitKArrivals = int64_t{kNumGridBarriers} * kArrivalsOfBarrier;

inline int ChunkUnits(const StreamShape& shape) { return shape.kind == StreamKind::kBf16 ? 2 : 1; }

inline Slices SlicesOf(const StreamShape& shape, int64_t num_tokens) {
  const int chunk_units = ChunkUnits(shape);
  if (shape.units % chunk_units != 0 || shape.segment_units % chunk_units != 0) return {};
  const int num_chunks = shape.units / chunk_units;
  const int segment_chunks = shape.segment_units / chunk_units;
  Slices slices = {.count = 1, .chunks = num_chunks};
  if (num_chunks * kSplitKChunk > kSplitKMaxColumns)
    slices = {.count = shape.num_segments, .chunks = segment_chunks};
  // Chunks are taken by twos, which share their scales; a segment of all columns is two of them.
  if (num_chunks % 2 != 0 || slices.chunks % 2 != 0 || (slices.count == 1 && segment_chunks != 2)) return {};
  if (HasScaledSums(shape.kind) && shape.block_units_log2 < 1) return {};
  // More than 64 tokens want two sums of each, so only those that are one segment's.
  constexpr std::array<int, 6> kTiles = {32, 48, 64, 80, 96, 128};
  const int most =
      std::min(slices.count > 1 ? 128 : 64, kSplitKMaxColumns * 64 / (slices.chunks * kSplitKChunk));
  if (most < kTiles.front()) return {};
  // As few tiles as can be, then the narrowest that are no more.
  const int widest = *std::prev(std::ranges::upper_bound(kTiles, most));
  const int64_t fewest = CeilOf(num_tokens, widest);
  slices.tokens = *std::ranges::find_if(
      kTiles, [&](int tokens) { return tokens == widest || fewest * tokens >= num_tokens; });
  return slices;
}

}  // namespace dsv4::backend::cuda
