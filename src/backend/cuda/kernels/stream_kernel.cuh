// The kernel of linear_stream.h, and what it is told.
//
// A launch is one phase or two. A phase multiplies matrices by the same activations; those of the second are what the first gives, as
// they are or with an RMS norm in between, and all blocks meet before it (grid_barrier.cuh). Weights know nothing of phases: a block
// has those of the second under way while it is still busy with the first, and while it waits.
//
// Blocks that come late, because the kernel in front still has their processors, have no part in the first of two phases.
#pragma once

#include <cstddef>

#include "backend/cuda/kernels/grid_barrier.cuh"
#include "backend/cuda/kernels/hc_mix.cuh"
#include "backend/cuda/kernels/row_steps.cuh"
#include "backend/cuda/kernels/warp_stream.cuh"

namespace dsv4::backend::cuda::stream_kernel {

inline constexpr int kStages = 3;                        // 96 KB of weights that a block has under way.
inline constexpr uint32_t kPrefetchedBytes = 64 * 1024;  // Of what a block reads after them, into L2.
inline constexpr int kSumsBytes = 16 * 1024;             // Of segments, until they are added.
inline constexpr int kMaxMatrices = 12;                  // Of a launch.
inline constexpr int kMaxNormWidth = kRowAtOnce * kStreamThreads;

// A weight, and where its products go.
struct Matrix {
  StreamShape shape;
  const uint8_t* data;
  const uint8_t* scale;
  void* y;
  int64_t y_stride;
  int64_t y_group_stride;
  float global_scale;
  int form;        // Of the activations, in Phase::forms.
  int first_tile;  // Of the phase's tiles.
  int rows;        // Of a group.
  bool y_is_bf16;
};

// The norm of one row of bf16, `width` values at `from`, which every block makes for itself, and the first one for others.
struct RowNorm {
  const uint16_t* from;  // Null: none.
  uint16_t* to;
  const float* weight;
  int width;
  float eps;
};

struct Phase {
  int first_matrix;
  int num_matrices;
  int num_groups;
  int num_blocks;  // That share its tiles, as many of every group.
  int num_tiles;   // Of a group, all matrices together.
  int cols;
  StreamForms forms;
  const uint16_t* x;  // Where there is a norm, what it gives.
  int64_t x_stride;
  int64_t x_group_stride;
  RowNorm norm;
};

struct Params {
  int num_phases;
  int num_tokens;
  int num_blocks;     // Of linears; those in front of them do `mix`.
  int max_items;      // Of a block.
  int scales_stride;  // Of a tile: the most blocks of columns that any FP8 matrix has.
  int rows_elements;  // Of a phase's activations in shared memory, the most of them.
  int mix_tokens;
  HcPreParams mix;
  GridBarrier* barrier;  // Where there are two phases.
  Phase first;           // Two members: no array of structures with padding (LaunchList::AddArgument).
  Phase second;
  Matrix matrices
      [kMaxMatrices];  // Last (LaunchList::AddArgument). Those behind the last phase's are zero: equal launches are equal bytes.
};
static_assert(offsetof(Params, matrices) + sizeof(Params::matrices) == sizeof(Params));
static_assert(sizeof(Params) <= 4000);  // Arguments of a launch.

// A row tile of a block.
struct alignas(16) Item {
  StreamTile tile;
  int matrix;
  int first_row;  // Of the matrix.
};

// Row tiles whose sums of segments are added at once.
__host__ __device__ __forceinline__ int ItemsAtOnce(int num_tokens) {
  return kSumsBytes / (num_tokens * kSegments * static_cast<int>(sizeof(SegmentSums)));
}

// What a block has of a phase: tiles `first`, `first` + `step`, ... of a group.
struct Share {
  int group;
  int first;
  int step;
  int count;
};
__host__ __device__ __forceinline__ Share ShareOf(const Phase& phase, int block) {
  const int step = phase.num_blocks / phase.num_groups;
  const int first = block % step;
  if (block >= phase.num_blocks || first >= phase.num_tiles) return {0, 0, step, 0};
  return {block / step, first, step, (phase.num_tiles - first + step - 1) / step};
}

// As RmsNormRow<kThreads> of row_steps.cuh: the same sums in the same order, by the first kThreads threads of a block.
template <int kThreads>
__device__ __forceinline__ void NormRow(const RowNorm& norm, uint16_t* to) {
  __shared__ __align__(16) double partial[kThreads / 32];
  const int t = static_cast<int>(threadIdx.x);
  float values[kRowAtOnce];
  float weights[kRowAtOnce];
#pragma unroll
  for (int k = 0; k < kRowAtOnce; ++k) {
    const int i = t + k * kThreads;
    const bool exists = t < kThreads && i < norm.width;
    values[k] = exists ? __uint_as_float(static_cast<uint32_t>(norm.from[i]) << 16) : 0.0F;
    weights[k] = exists ? norm.weight[i] : 0.0F;
  }
  if (t < kThreads) {
    double sum = 0.0;
#pragma unroll
    for (int k = 0; k < kRowAtOnce; ++k) {
      const auto value = static_cast<double>(values[k]);
      sum += value * value;
    }
    sum = WarpSum(sum);
    if (t % 32 == 0) partial[t / 32] = sum;
  }
  __syncthreads();
  double total = partial[0];
#pragma unroll
  for (int w = 1; w < kThreads / 32; ++w) total += partial[w];
  const double factor = 1.0 / sqrt(MeanOf(total, norm.width) + static_cast<double>(norm.eps));
#pragma unroll
  for (int k = 0; k < kRowAtOnce; ++k) {
    const int i = t + k * kThreads;
    if (t < kThreads && i < norm.width) {
      to[i] = Bf16FromFloat(
          static_cast<float>(static_cast<double>(values[k]) * (factor * static_cast<double>(weights[k]))));
    }
  }
  __syncthreads();
}

// Registers for as many threads as a block has not: those of the small kernels in front and behind find room beside it, and so begin, or
// let it begin, before it ends. Widening FP4 takes more.
template <StreamKind... kKinds>
inline constexpr int kRoomOfThreads = (IsFp4(kKinds) || ...) ? kStreamThreads : 768;

// Weights of kinds kKinds. Grid: tokens of mix, then blocks of linears.
template <StreamKind... kKinds>
__global__ void __launch_bounds__(kRoomOfThreads<kKinds...>, 1)
    StreamKernel(const __grid_constant__ Params p) {
  constexpr bool kAnyFp4 = (IsFp4(kKinds) || ...);
  const int t = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(blockIdx.x) - p.mix_tokens;
  if (block < 0) {
    LetNextKernelStart();
    WaitForKernelsBefore();
    return HcMixOfToken<kStreamThreads>(p.mix, static_cast<int>(blockIdx.x));
  }
  const int first_items = ShareOf(p.first, block).count;
  const int num_items = first_items + (p.num_phases > 1 ? ShareOf(p.second, block).count : 0);
  const int items_at_once = ItemsAtOnce(p.num_tokens);

  extern __shared__ __align__(16) unsigned char shared[];
  auto& ring = reinterpret_cast<WarpRing<kStages>*>(shared)[t / 32];
  auto* const sums = reinterpret_cast<SegmentSums*>(shared + kStreamWarps * sizeof(WarpRing<kStages>));
  auto* const items = reinterpret_cast<Item*>(sums + kSumsBytes / sizeof(SegmentSums));
  auto* const rows = reinterpret_cast<uint16_t*>(items + p.max_items);
  float* const fp8_scales = reinterpret_cast<float*>(rows + p.rows_elements);
  float* const x_scales = fp8_scales + p.max_items * p.scales_stride;

  for (int i = t; i < num_items; i += kStreamThreads) {
    const bool second = i >= first_items;
    const Phase& phase = second ? p.second : p.first;
    const Share share = ShareOf(phase, block);
    const int tile = share.first + (second ? i - first_items : i) * share.step;
    int matrix = phase.first_matrix;
    while (matrix + 1 < phase.first_matrix + phase.num_matrices && tile >= p.matrices[matrix + 1].first_tile)
      ++matrix;
    const Matrix& m = p.matrices[matrix];
    const int first_row = share.group * m.rows + (tile - m.first_tile) * kTileRows;
    items[i] = {{m.data + static_cast<int64_t>(first_row) * m.shape.row_bytes,
                 m.scale + static_cast<int64_t>(first_row) * m.shape.scale_row_bytes},
                matrix,
                first_row};
  }
  __syncthreads();
  const auto shape_of = [&](int i) -> const StreamShape& { return p.matrices[items[i].matrix].shape; };
  const auto tile_of = [&](int i) { return items[i].tile; };
  WarpReader<kStages, kAnyFp4, decltype(tile_of), decltype(shape_of)> reader(ring, num_items, tile_of,
                                                                             shape_of);
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) reader.Load();
  // What does not fit the rings waits in L2.
  if (t > 1 && t < num_items) {
    const auto bytes = static_cast<uint32_t>(kTileRows * shape_of(t).row_bytes);
    if (t * bytes < kPrefetchedBytes + kStreamWarps * sizeof(ring.data))
      PrefetchToL2(items[t].tile.data, bytes);
  }
  for (int n = t; n < num_items * p.scales_stride; n += kStreamThreads) {
    const Item& item = items[n / p.scales_stride];
    const Matrix& m = p.matrices[item.matrix];
    const int column = n % p.scales_stride;
    if (column < m.shape.scale_cols) {
      fp8_scales[n] = LoadScale(
          m.scale, m.shape.scale_dtype,
          static_cast<int64_t>(item.first_row >> m.shape.block_rows_log2) * m.shape.scale_cols + column);
    }
  }
  WaitForKernelsBefore();

  const int place = t % 4;
  const int lane_token = t % 32 / 4;  // Of B; of the sums place * 2 and the next.
  const bool exists = lane_token < p.num_tokens;
  uint32_t slot = 0;
  int current = FirstItemOfWarp();
  bool let_next = false;
  uint32_t left = 0;  // Of the barrier.
  int first = 0;
#pragma unroll 1
  for (int number = 0; number < p.num_phases; ++number) {
    const Phase& phase = number == 0 ? p.first : p.second;
    const int phase_end = number + 1 < p.num_phases ? first_items : num_items;
    if (number > 0) {
      if (block < p.first.num_blocks) ArriveAtBarrier(p.barrier);
      WaitForBlocks(p.barrier, static_cast<uint32_t>(p.first.num_blocks));
      left = LeaveBarrier(p.barrier);
    }
    const int64_t group = ShareOf(phase, block).group;
    const auto x_stride = static_cast<int>(StreamRow(phase.cols));
    const auto groups = static_cast<int>(StreamGroups(phase.cols));
    if (phase.norm.from != nullptr && (first < phase_end || block == 0)) {
      // In the place of sums, which nobody needs now.
      auto* const row = reinterpret_cast<uint16_t*>(sums);
      if (phase.norm.width <= kMaxNarrowRow) {
        NormRow<kNarrowRowThreads>(phase.norm, row);
      } else {
        NormRow<kWideRowThreads>(phase.norm, row);
      }
      if (block == 0) {
        for (int i = t; i < phase.norm.width; i += kStreamThreads) phase.norm.to[i] = row[i];
      }
    }
    if (first < phase_end) {
      const uint16_t* const x = phase.norm.from != nullptr ? reinterpret_cast<const uint16_t*>(sums)
                                                           : phase.x + group * phase.x_group_stride;
      LoadStreamRows<kStreamThreads>(rows, x_scales, p.num_tokens, phase.cols, phase.forms,
                                     [&](int token) { return x + token * phase.x_stride; });
      __syncthreads();
    }
    const float* const x_scales0 = x_scales + min(place * 2, p.num_tokens - 1) * groups;
    const float* const x_scales1 = x_scales + min(place * 2 + 1, p.num_tokens - 1) * groups;
#pragma unroll 1
    while (first < phase_end) {
      const int end = min(phase_end, first + items_at_once);
#pragma unroll 1
      for (; current < end; current += kItemStep) {
        const Matrix& m = p.matrices[items[current].matrix];
        float segment[4] = {};
        WithStreamKind<kKinds...>(m.shape.kind, [&]<StreamKind kKind>() {
          MultiplyWarpSegment<kKind, kStages>(
              ring, slot, reader, m.shape, rows + (m.form * p.num_tokens + lane_token) * x_stride, exists,
              {fp8_scales + current * p.scales_stride, x_scales0, x_scales1}, segment);
        });
        StoreSegmentSums(sums + (current - first) * kSegments * p.num_tokens, p.num_tokens, segment);
      }
      if (!let_next && end == num_items) {
        let_next = true;
        LetNextKernelStart();
      }
      __syncthreads();
      for (int i = t; i < (end - first) * p.num_tokens * kTileRows; i += kStreamThreads) {
        const int row = i % kTileRows;
        const int token = i / kTileRows % p.num_tokens;
        const int of = i / (kTileRows * p.num_tokens);
        const Item& item = items[first + of];
        const Matrix& m = p.matrices[item.matrix];
        float sum = 0.0F;
        WithStreamKind<kKinds...>(m.shape.kind, [&]<StreamKind kKind>() {
          sum = SumSegments<FormatOf(kKind)>(sums + of * kSegments * p.num_tokens, p.num_tokens, token, row,
                                             m.shape, m.global_scale);
        });
        const int64_t place_in_y =
            group * m.y_group_stride + token * m.y_stride + item.first_row + row - group * m.rows;
        if (m.y_is_bf16) {
          static_cast<uint16_t*>(m.y)[place_in_y] = Bf16FromFloat(sum);
        } else {
          static_cast<float*>(m.y)[place_in_y] = sum;
        }
      }
      if (end < num_items) __syncthreads();
      first = end;
    }
  }
  if (p.num_phases > 1) CloseBarrier(p.barrier, left, static_cast<uint32_t>(p.num_blocks));
}

}  // namespace dsv4::backend::cuda::stream_kernel
