// W x for a few tokens whose row tiles come whole. TMA brings 16 rows or some times as many into shared
// memory, as they lie in memory, for FP4 with their scales. Eight warps have a segment of their columns each.
// In gemv_warps.cuh each thread asks for the weights that it multiplies; here asking holds up no warp.
// Requests of 16 bytes a thread went out for 9 us of an expert launch. By that time all of its weights could
// have been there.
//
// Products, their order and that of all sums are those of gemm_mma.cuh.
#pragma once

#include <type_traits>

#include "backend/cuda/device/ptx/wgmma_tma.cuh"
#include "backend/cuda/kernels/gemm/gemv_units.cuh"
#include "backend/cuda/kernels/gemm/gemv_warps.cuh"

namespace dsv4::backend::cuda {

// The threads that multiply, and a warp that asks.
inline constexpr int kWholeTileThreads = kStreamThreads + 32;

// A RingPlace among as many stages as a launch has.
struct StagePlace {
  int i = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next(int num_stages, int by = 1) {
    i += by;
    if (i >= num_stages) {
      i -= num_stages;
      parity ^= 1U;
    }
  }
};

// Tiles in shared memory begin a line of it, and so does every tile with a multiple of 256 columns: 16 bytes
// are enough for the TMA, which then writes slower.
inline constexpr int kTileAlignment = 128;

// Bytes of so many rows, one row tile or more: their elements, row by row, then their scales.
__host__ __device__ constexpr int TileBytes(const StreamShape& shape, int rows = kTileRows) {
  return rows * (shape.row_bytes + shape.scale_row_bytes);
}

// To TileBytes of shared memory; `barrier` counts them. By one thread.
template <int kRows = kTileRows>
__device__ __forceinline__ void CopyTile(unsigned char* to, const StreamTile& tile, const StreamShape& shape,
                                         uint64_t* barrier, uint64_t policy) {
  const int data_bytes = kRows * shape.row_bytes;
  CopyBulkBy(policy, to, tile.data, static_cast<uint32_t>(data_bytes), barrier);
  if (shape.scale_row_bytes > 0) {
    CopyBulkBy(policy, to + data_bytes, tile.scale, static_cast<uint32_t>(kRows * shape.scale_row_bytes),
               barrier);
  }
}

// Waits until the bytes of a stage in the phase of this parity are there. With an odd number of stages the
// phase before belongs to the other group of warps. As long as its tiles have not come a wait for `full`
// alone would pass, since the phase before that had this parity too. When the other group has left the stage,
// its tiles have come.
__device__ __forceinline__ void WaitForTiles(uint64_t* full, uint64_t* empty, uint32_t parity) {
  WaitForPhase(empty, parity ^ 1U);
  WaitForPhase(full, parity);
}

// Position of a lane's part of its warp's segment in any tile of a matrix.
struct TileSegment {
  int units;  // None or less: there are fewer segments.
  int first_unit;
  int data;  // From the tile's beginning, in bytes: its lower row's, from which the upper is so far:
  int upper_data;
  int scales;  // Offset of the segment's first unit in the tile's first row.
  int scale_row_bytes;
};
template <int kRows = kTileRows>
__device__ __forceinline__ TileSegment SegmentOf(const StreamShape& shape) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_unit = WarpSegment() * shape.segment_units;
  const int scale_bytes = shape.kind == StreamKind::kNvFp4 ? 8 : 4;  // Bytes of a unit's row.
  return {.units = SegmentUnits(shape),
          .first_unit = first_unit,
          .data = lane / 4 * shape.row_bytes + first_unit * kUnitBytes + lane % 4 * 16,
          .upper_data = 8 * shape.row_bytes,
          .scales = kRows * shape.row_bytes + first_unit * scale_bytes,
          .scale_row_bytes = shape.scale_row_bytes};
}

// Scales of four units of a warp's rows, which lie where lanes do not meet in a bank. In the tile, rows are a
// multiple of 128 bytes apart where there are many columns.
struct SpreadScales {
  static constexpr int kUnits = 4;
  static constexpr int kRowBytes = 40;
  uint8_t rows[kTileRows][kRowBytes];
};

template <StreamKind kKind>
__device__ __forceinline__ void Spread(SpreadScales& to, const uint8_t* scales, int scale_row_bytes,
                                       int num_units) {
  using UnitScales = std::conditional_t<kKind == StreamKind::kNvFp4, uint2, uint32_t>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int offset = lane % 4 * static_cast<int>(sizeof(UnitScales));
  __syncwarp();
  if (lane % 4 < num_units) {
#pragma unroll
    for (int row = lane / 4; row < kTileRows; row += 8) {
      *reinterpret_cast<UnitScales*>(to.rows[row] + offset) =
          *reinterpret_cast<const UnitScales*>(scales + row * scale_row_bytes + offset);
    }
  }
  __syncwarp();
}

__device__ __forceinline__ uint4 LoadShared16(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address));
  return value;
}

// Whether MultiplyTile spreads scales: rows with many of them are lines of shared memory apart.
__host__ __device__ __forceinline__ bool NeedsSpread(const StreamShape& shape) {
  return IsFp4(shape.kind) && shape.segment_units >= SpreadScales::kUnits;
}

// The warp's segment of kTiles row tiles times tokens, the lane's of which begins at x in shared memory, if
// it exists. Of several tiles, which are FP4 and need no spreading, a unit's activations are read once for
// all. `spread` is for one tile of FP4.
template <StreamKind kKind, int kTiles>
__device__ __forceinline__ void MultiplyTile(const unsigned char* tile, const TileSegment& segment,
                                             int block_units_log2, const uint16_t* x, bool exists,
                                             const StreamScales& by, SpreadScales* spread,
                                             float (&sums)[kTiles][4]) {
  constexpr int kUnitCols = 4 * Unpack<FormatOf(kKind)>::kValues;
  constexpr int kBytes = kKind == StreamKind::kNvFp4 ? 2 : 1;  // A lane's scales of a unit.
  static_assert(IsFp4(kKind) || kTiles == 1);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // By row tile: where a lane's lower and upper rows are.
  uint32_t rows[kTiles][2];
#pragma unroll
  for (int i = 0; i < 2 * kTiles; ++i) {
    rows[i / 2][i % 2] = SharedAddress(tile) + static_cast<uint32_t>(segment.data + i * segment.upper_data);
    // Else it is the first and what lies between, which is read from the launch's arguments unit by unit.
    if (i > 0) asm volatile("" : "+r"(rows[i / 2][i % 2]));
  }
  const unsigned char* scales = tile + segment.scales;
  x += segment.first_unit * kUnitCols + lane % 4 * (kUnitCols / 4);
#pragma unroll 1
  for (int first = 0; first < segment.units; first += SpreadScales::kUnits) {
    const int units = min(SpreadScales::kUnits, segment.units - first);
    const uint8_t* of_row = scales + lane / 4 * segment.scale_row_bytes + lane % 4 * kBytes;
    int upper_scales = 8 * segment.scale_row_bytes;
    if constexpr (IsFp4(kKind) && kTiles == 1) {
      if (segment.units >= SpreadScales::kUnits) {
        Spread<kKind>(*spread, scales, segment.scale_row_bytes, units);
        of_row = spread->rows[lane / 4] + lane % 4 * kBytes;
        upper_scales = 8 * SpreadScales::kRowBytes;
      }
    }
#pragma unroll 1
    for (int i = first; i < first + units; ++i) {
      if constexpr (kTiles == 1) {
        MultiplyUnit<kKind>(sums[0], LoadShared16(rows[0][0]), LoadShared16(rows[0][1]), x, exists, by,
                            segment.first_unit + i, block_units_log2, of_row, upper_scales);
      } else {
        uint4 columns[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) columns[k] = LoadTokenColumns(x + k * 8, exists);
#pragma unroll
        for (int k = 0; k < kTiles; ++k) {
          const uint8_t* const of_tile = of_row + k * kTileRows * segment.scale_row_bytes;
          MultiplyFp4Unit<FormatOf(kKind)>(sums[k], LoadShared16(rows[k][0]), LoadShared16(rows[k][1]),
                                           of_tile, of_tile + upper_scales,
                                           [&](int chunk) { return columns[chunk]; });
        }
      }
      of_row += 4 * kBytes;
      x += kUnitCols;
#pragma unroll
      for (int k = 0; k < 2 * kTiles; ++k) rows[k / 2][k % 2] += kUnitBytes;
    }
    scales += SpreadScales::kUnits * 4 * kBytes;
  }
}

}  // namespace dsv4::backend::cuda
