// W x for a few tokens at the speed of reading W. A block works through row tiles of one or more matrices.
// Every thread copies the weights that it will multiply into shared memory of its own, many pieces ahead. So
// no registers wait for memory and no thread waits for another's copy. The first pieces are asked for before
// the kernels in front have ended. Activations lie in shared memory too.
//
// The products, their order and the order of all sums are those of gemm_mma.cuh, so a token's result is the
// same bits in either.
#pragma once

#include "backend/cuda/device/ptx/cp_async.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/gemm/gemm_mma.cuh"
#include "backend/cuda/kernels/gemm/gemv_rows.cuh"
#include "backend/cuda/kernels/gemm/gemv_units.cuh"
#include "backend/cuda/lowering/gemv_shape.h"

namespace dsv4::backend::cuda {

// Stages that the threads of a block have in flight.
template <int kStages>
struct StreamRing {
  uint4 data[kStages][4][kMatmulThreads];  // Both units of a thread's first row, then of its second.
  uint8_t scales[kStages][kSegments][kTileRows]
                [16];  // Scales of FP4, by warp: those of the first unit, then of the second.
};

// A barrier of the block's threads that some only arrive at.
__device__ __forceinline__ void ArriveAt(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kMatmulThreads) : "memory");
}
__device__ __forceinline__ void WaitAt(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kMatmulThreads) : "memory");
}

// Row tile `first_row` of a matrix times the tokens that begin at `x` in shared memory.
struct StreamItem {
  StreamShape shape;
  const uint8_t* data;  // The matrix's.
  const uint8_t* scale;
  float global_scale;
  int first_row;
  const uint16_t* x;
  const float* x_scales;  // Scales of StreamForm::kHalves: of the tokens' groups.
};

__device__ __forceinline__ StreamItem ItemOf(const StreamShape& shape, const StreamMatrix& matrix,
                                             int first_row, const uint16_t* x, const float* x_scales) {
  return {shape, matrix.data, matrix.scale, matrix.global_scale, first_row, x, x_scales};
}

// Units of this warp's segment.
__device__ __forceinline__ int UnitsOfWarp(const StreamShape& shape) {
  const int begin = static_cast<int>(threadIdx.x) / 32 * shape.segment_units;
  return min(shape.segment_units, shape.units - begin);
}

// A lane's way through the units of a tile that its warp multiplies.
struct StreamCursor {
  const uint8_t* data[2];   // By row.
  const uint8_t* scale[2];  // FP4's.
  int words;                // Four bytes', a row's scales of a unit.
  int units;                // Left; none or less: the tile is done.

  __device__ __forceinline__ void Start(const StreamItem& item) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int first_unit = static_cast<int>(threadIdx.x) / 32 * item.shape.segment_units;
    units = UnitsOfWarp(item.shape);
    words = item.shape.kind == StreamKind::kNvFp4 ? 2 : 1;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t row = item.first_row + lane / 4 + r * 8;
      data[r] = item.data + row * item.shape.row_bytes + first_unit * kUnitBytes + lane % 4 * 16;
      scale[r] = item.scale + row * item.shape.scale_row_bytes + first_unit * words * 4 + lane % 4 * 4;
    }
  }
};

// The scales of FP8 weights of every item's rows, those of item i at scales + i * stride.
template <typename Item>
__device__ void LoadFp8Scales(float* scales, int stride, int num_items, Item&& item) {
  for (int n = static_cast<int>(threadIdx.x); n < num_items * stride; n += kMatmulThreads) {
    const StreamItem of = item(n / stride);
    const int block = n % stride;
    if (block < of.shape.scale_cols) {
      scales[n] = LoadBlockScale(
          of.shape, of.scale,
          static_cast<int64_t>(of.first_row >> of.shape.block_rows_log2) * of.shape.scale_cols + block);
    }
  }
}

// The activations of a block, in shared memory.
struct StreamTokens {
  int count;
  int stride;  // Elements between tokens.
  int groups;  // 128 columns'.
};

// Works through items 0 to num_items - 1, item(i) each, of kind kKind. All threads call prepare() once, when
// the first weights are in flight. It waits for the kernels before and fills shared memory, that of
// LoadFp8Scales included. For every result emit(i, item, token, row, sum) is called. Items go in runs of
// items_in_order, counted from the first. One thread has the results of a run for a token and row of a tile,
// in order. A kernel behind this one is let start when the last weights have been asked for.
template <int kStages, StreamKind kKind, typename Item, typename Prepare, typename Emit>
__device__ void StreamItems(StreamRing<kStages>& ring, const float* fp8_scales, int fp8_scale_stride,
                            int num_items, int items_in_order, const StreamTokens& tokens, Item&& item,
                            Prepare&& prepare, Emit&& emit) {
  constexpr int kBuffers = 4;
  constexpr int kFull = 1;                 // Barriers: that a buffer's sums are there,
  constexpr int kFree = kFull + kBuffers;  // and that they have been read.
  constexpr MatmulKind kFormat = FormatOf(kKind);
  constexpr bool kFp4 = IsFp4(kKind);
  constexpr int kUnitCols = 4 * Unpack<kFormat>::kValues;
  __shared__ PartialSums<1> partial[kBuffers];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int group = lane / 4;
  const int place = lane % 4;

  // Address to ask for next.
  constexpr uint32_t kStageBytes = sizeof(ring.data[0]);
  constexpr uint32_t kScaleStageBytes = sizeof(ring.scales[0]);
  const uint32_t data_begin = SharedAddress(&ring.data[0][0][thread]);
  const uint32_t scale_begin = SharedAddress(&ring.scales[0][warp][group][place * 4]);
  uint32_t next_slot = 0;
  int next_item = -1;
  StreamCursor cursor;
  const auto next_tile = [&] {
    do {
      if (++next_item >= num_items) return;
      const StreamItem next = item(next_item);
      cursor.Start(next);
    } while (cursor.units <= 0);
  };
  const uint64_t policy = EvictFirst();
  const auto load = [&] {
    if (next_item < num_items) {
      const uint32_t to = data_begin + next_slot * kStageBytes;
      const bool two = cursor.units > 1;
      CopyToShared16(to, cursor.data[0], policy);
      CopyToShared16(to + 2 * kMatmulThreads * 16, cursor.data[1], policy);
      if (two) {
        CopyToShared16(to + kMatmulThreads * 16, cursor.data[0] + kUnitBytes, policy);
        CopyToShared16(to + 3 * kMatmulThreads * 16, cursor.data[1] + kUnitBytes, policy);
      }
      cursor.data[0] += 2 * kUnitBytes;
      cursor.data[1] += 2 * kUnitBytes;
      if constexpr (kFp4) {
        // MXFP4 has a word of scales for a unit, NVFP4 two.
        if (place < cursor.words * (two ? 2 : 1)) {
          const uint32_t scale_to = scale_begin + next_slot * kScaleStageBytes;
          CopyToShared4(scale_to, cursor.scale[0]);
          CopyToShared4(scale_to + 8 * 16, cursor.scale[1]);
        }
        cursor.scale[0] += 8 * cursor.words;
        cursor.scale[1] += 8 * cursor.words;
      }
      next_slot = next_slot + 1 == kStages ? 0 : next_slot + 1;
      cursor.units -= 2;
      if (cursor.units <= 0) next_tile();
    }
    CommitCopies();  // Also where nothing was asked for: copies are counted.
  };
  next_tile();
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) load();
  prepare();

  const bool exists = group < tokens.count;
  uint32_t slot = 0;
  bool let_next = false;
#pragma unroll 1
  for (int current = 0; current < num_items; ++current) {
    const StreamItem now = item(current);
    const int units = UnitsOfWarp(now.shape);
    const int first_unit = warp * now.shape.segment_units;
    float sums[4] = {};
    const float* const x_scales0 = now.x_scales + min(place * 2, tokens.count - 1) * tokens.groups;
    const float* const x_scales1 = now.x_scales + min(place * 2 + 1, tokens.count - 1) * tokens.groups;
    const uint16_t* x = now.x + group * tokens.stride + first_unit * kUnitCols + place * (kUnitCols / 4);
#pragma unroll 1
    for (int i = 0; i < units; i += 2) {
      WaitForCopies<kStages - 1>();
      if constexpr (kFp4) __syncwarp();
      const auto& data = ring.data[slot];
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        if (u == 1 && i + 1 >= units) break;
        const uint4 low = data[u][thread];
        const uint4 high = data[2 + u][thread];
        constexpr int kBytes = kKind == StreamKind::kNvFp4 ? 2 : 1;  // A lane's scales of a unit.
        MultiplyUnit<kKind>(sums, low, high, x + u * kUnitCols, exists,
                            {fp8_scales + current * fp8_scale_stride, x_scales0, x_scales1},
                            first_unit + i + u, now.shape.block_units_log2,
                            &ring.scales[slot][warp][group][(u * 4 + place) * kBytes], 8 * 16);
      }
      x += 2 * kUnitCols;
      slot = slot + 1 == kStages ? 0 : slot + 1;
      if constexpr (kFp4) __syncwarp();
      load();
    }
    if (!let_next && next_item >= num_items) {
      let_next = true;
      LetNextKernelStart();
    }

    // Sums go through one of a few buffers to the warp that adds this item's; the others go on.
    const int buffer = current % kBuffers;
    const int adder = current / items_in_order % kSegments;
    if (current >= kBuffers && warp != (current - kBuffers) / items_in_order % kSegments)
      WaitAt(kFree + buffer);
    PartialSums<1>& results = partial[buffer];
    if (place * 2 < tokens.count) {
      results[warp][place * 2][group] = sums[0];
      results[warp][place * 2 + 1][group] = sums[1];
      results[warp][place * 2][group + 8] = sums[2];
      results[warp][place * 2 + 1][group + 8] = sums[3];
    }
    __syncwarp();
    if (warp != adder) {
      ArriveAt(kFull + buffer);
      continue;
    }
    WaitAt(kFull + buffer);
    for (int i = lane; i < tokens.count * kTileRows; i += 32) {
      const int t = i / kTileRows;
      float sum = results[0][t][i % kTileRows];
#pragma unroll
      for (int s = 1; s < kSegments; ++s) {
        if (s < now.shape.num_segments) sum += results[s][t][i % kTileRows];
      }
      sum = Unpack<kFormat>::Finish(now.shape.global_scale_divides, now.global_scale, sum);
      emit(current, now, t, now.first_row + i % kTileRows, sum);
    }
    __syncwarp();
    if (current + kBuffers < num_items) ArriveAt(kFree + buffer);
  }
}

}  // namespace dsv4::backend::cuda
