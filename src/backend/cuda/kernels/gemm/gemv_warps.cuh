// W x for a few tokens at the speed of reading W, warp by warp. A block of 16 warps works through items, row
// tiles of one or more matrices. A warp has the same segment of columns of every other item, and waits for no
// other warp. It copies its weights into a ring of its own, some stages ahead. Sums of segments are left in
// shared memory and added when many are there. Products, their order and that of all sums are those of
// gemm_mma.cuh.
//
// The kernel needs few instructions and few wavefronts of shared memory, since widening leaves little of both
// to spare. So a warp's item costs no barrier, and activations are read only for the tokens that exist.
#pragma once

#include "backend/cuda/device/ptx/cp_async.cuh"
#include "backend/cuda/device/ptx/shared_address.cuh"
#include "backend/cuda/kernels/gemm/gemm_mma.cuh"
#include "backend/cuda/kernels/gemm/gemv_units.cuh"
#include "backend/cuda/lowering/gemv_shape.h"

namespace dsv4::backend::cuda {

inline constexpr int kStreamWarps = 16;
inline constexpr int kStreamThreads = 32 * kStreamWarps;
inline constexpr int kItemStep = kStreamWarps / kSegments;  // From an item of a warp to its next.

// Stages that a warp has in flight: stages of two units.
template <int kStages>
struct WarpRing {
  uint4 data[kStages][4][32];              // Both units of a lane's first row, then of its second.
  uint8_t scales[kStages][kTileRows][16];  // Scales of FP4: those of the first unit, then of the second.
};

// A row tile: where its elements and, of FP4, its scales begin.
struct StreamTile {
  const uint8_t* data;
  const uint8_t* scale;
};

__device__ __forceinline__ int WarpSegment() { return static_cast<int>(threadIdx.x) / 32 % kSegments; }
__device__ __forceinline__ int FirstItemOfWarp() { return static_cast<int>(threadIdx.x) / 32 / kSegments; }
// Units of the warp's segment; none or less where there are fewer segments.
__device__ __forceinline__ int SegmentUnits(const StreamShape& shape) {
  return min(shape.segment_units, shape.units - WarpSegment() * shape.segment_units);
}

// Asks for the stages of a warp's items in order. tile(i) and shape(i) are those of item i.
template <int kStages, bool kAnyFp4, typename Tile, typename Shape>
class WarpReader {
 public:
  __device__ __forceinline__ WarpReader(WarpRing<kStages>& ring, int num_items, Tile tile, Shape shape)
      : ring_(ring),
        num_items_(num_items),
        tile_(tile),
        shape_(shape),
        item_(FirstItemOfWarp() - kItemStep) {}

  __device__ __forceinline__ void Load() {
    while (units_ <= 0 && item_ < num_items_) {
      item_ += kItemStep;
      if (item_ < num_items_) Start();
    }
    if (units_ > 0) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      const uint32_t to = SharedAddress(&ring_.data[slot_][0][lane]);
      const bool two = units_ > 1;
      CopyToShared16(to, data_[0], policy_);
      CopyToShared16(to + 2 * 32 * 16, data_[1], policy_);
      if (two) {
        CopyToShared16(to + 32 * 16, data_[0] + kUnitBytes, policy_);
        CopyToShared16(to + 3 * 32 * 16, data_[1] + kUnitBytes, policy_);
      }
      if constexpr (kAnyFp4) {
        // MXFP4 has a word of scales for a unit, NVFP4 two.
        if (lane % 4 < words_ * (two ? 2 : 1)) {
          const uint32_t scale_to = SharedAddress(&ring_.scales[slot_][lane / 4][lane % 4 * 4]);
          CopyToShared4(scale_to, scale_[0]);
          CopyToShared4(scale_to + 8 * 16, scale_[1]);
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        data_[r] += 2 * kUnitBytes;
        if constexpr (kAnyFp4) scale_[r] += 2 * words_ * 4;
      }
      slot_ = slot_ + 1 == kStages ? 0 : slot_ + 1;
      units_ -= 2;
    }
    CommitCopies();  // Also where nothing was asked for: copies are counted.
  }

 private:
  __device__ __forceinline__ void Start() {
    const StreamShape& shape = shape_(item_);
    const StreamTile tile = tile_(item_);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int first_unit = WarpSegment() * shape.segment_units;
    units_ = SegmentUnits(shape);
    data_[0] = tile.data + lane / 4 * shape.row_bytes + first_unit * kUnitBytes + lane % 4 * 16;
    data_[1] = data_[0] + 8 * shape.row_bytes;
    if constexpr (kAnyFp4) {
      words_ = shape.kind == StreamKind::kNvFp4 ? 2 : (IsFp4(shape.kind) ? 1 : 0);
      scale_[0] = tile.scale + lane / 4 * shape.scale_row_bytes + first_unit * words_ * 4 + lane % 4 * 4;
      scale_[1] = scale_[0] + 8 * shape.scale_row_bytes;
    }
  }

  WarpRing<kStages>& ring_;
  const int num_items_;
  const Tile tile_;
  const Shape shape_;
  const uint64_t policy_ = EvictFirst();
  int item_;
  int units_ = 0;  // Left of the item.
  int words_ = 0;
  uint32_t slot_ = 0;
  const uint8_t* data_[2] = {};  // By row.
  const uint8_t* scale_[2] = {};
};

// The warp's segment of an item times the tokens whose rows begin at x in shared memory, the lane's own among
// them. Of kMxFp8 those may be halves.
template <StreamKind kKind, int kStages, typename Reader>
__device__ __forceinline__ void MultiplyWarpSegment(const WarpRing<kStages>& ring, uint32_t& slot,
                                                    Reader& reader, const StreamShape& shape,
                                                    const uint16_t* x, bool exists, const StreamScales& by,
                                                    float (&sums)[4], bool in_halves = false) {
  if constexpr (kMayBeHalves<kKind>) {
    if (in_halves) {
      const StreamScales of_halves = {by.blocks, by.token0, by.token1, shape.scale_codes.largest};
      return MultiplyWarpSegment<StreamKind::kMxFp8Halves, kStages>(ring, slot, reader, shape, x, exists,
                                                                    of_halves, sums);
    }
  }
  constexpr MatmulKind kFormat = FormatOf(kKind);
  constexpr int kUnitCols = 4 * Unpack<kFormat>::kValues;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int num_units = SegmentUnits(shape);
  const int first_unit = WarpSegment() * shape.segment_units;
  x += first_unit * kUnitCols + lane % 4 * (kUnitCols / 4);
#pragma unroll 1
  for (int i = 0; i < num_units; i += 2) {
    WaitForCopies<kStages - 1>();
    if constexpr (IsFp4(kKind)) __syncwarp();
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      if (u == 1 && i + 1 >= num_units) break;
      const uint4 low = ring.data[slot][u][lane];
      const uint4 high = ring.data[slot][2 + u][lane];
      constexpr int kBytes = kKind == StreamKind::kNvFp4 ? 2 : 1;  // A lane's scales of a unit.
      MultiplyUnit<kKind>(sums, low, high, x + u * kUnitCols, exists, by, first_unit + i + u,
                          shape.block_units_log2, &ring.scales[slot][lane / 4][(u * 4 + lane % 4) * kBytes],
                          8 * 16);
    }
    x += 2 * kUnitCols;
    slot = slot + 1 == kStages ? 0 : slot + 1;
    if constexpr (IsFp4(kKind)) __syncwarp();
    reader.Load();
  }
  if constexpr (kKind == StreamKind::kMxFp8Halves) {
#pragma unroll
    for (float& sum : sums) sum *= OfHalves(by.largest);
  }
}

// Sums of an item's segments, by segment, token and row.
using SegmentSums = float[kTileRows];

__device__ __forceinline__ void StoreSegmentSums(SegmentSums* of_item, int num_tokens,
                                                 const float (&sums)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int token = lane % 4 * 2;
  SegmentSums* const of = of_item + WarpSegment() * num_tokens + token;
  if (token < num_tokens) {
    of[0][lane / 4] = sums[0];
    of[0][lane / 4 + 8] = sums[2];
  }
  if (token + 1 < num_tokens) {
    of[1][lane / 4] = sums[1];
    of[1][lane / 4 + 8] = sums[3];
  }
}

// A row of a token: its segments in order, and what the matrix has for all of it.
template <MatmulKind kFormat>
__device__ __forceinline__ float SumSegments(const SegmentSums* of_item, int num_tokens, int token, int row,
                                             const StreamShape& shape, float global_scale) {
  float sum = of_item[token][row];
#pragma unroll
  for (int s = 1; s < kSegments; ++s) {
    if (s < shape.num_segments) sum += of_item[s * num_tokens + token][row];
  }
  return Unpack<kFormat>::Finish(shape.global_scale_divides, global_scale, sum);
}

}  // namespace dsv4::backend::cuda
