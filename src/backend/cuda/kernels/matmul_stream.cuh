// W x for a few tokens at the speed of reading W: a block works through row tiles of one or more matrices, and while it
// multiplies one piece of weights, the next is on its way to registers. The first piece is asked for before the kernels in
// front have ended. Activations lie in shared memory.
//
// The products, their order and the order of all sums are those of matmul_mma.cuh, so a token's result is the same bits in
// either.
#pragma once

#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/matmul_mma.cuh"

namespace dsv4::backend::cuda {

// --- Activations -----------------------------------------------------------------------------------------------------

// Elements of a row of activations in shared memory: whole tiles of zeros behind the last column, and 16 bytes more so that
// the rows of eight tokens lie in different banks.
__host__ __device__ constexpr int64_t StreamRow(int64_t cols) { return (cols + 127) / 128 * 128 + 8; }

constexpr size_t StreamRowsBytes(int64_t cols, int64_t num_rows) {
  return static_cast<size_t>(num_rows * StreamRow(cols)) * sizeof(uint16_t);
}

// Whether rows of x can be loaded as they are: bf16, aligned, and not too many for two blocks a processor.
inline bool CanStreamRows(const TensorView& x, int64_t cols, int64_t stride, int64_t num_rows) {
  constexpr size_t kMaxBytes = 96 * 1024;
  return x.dtype == DType::kBF16 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && cols % 8 == 0 &&
         (stride % 8 == 0 || num_rows == 1) && StreamRowsBytes(cols, num_rows) <= kMaxBytes;
}

// Two bf16 in a word, times the reciprocal of a power of two, rounded to FP8, and times that power again. The product is exact
// in bf16: the high half of the float.
__device__ __forceinline__ uint32_t RoundPairToFp8(uint32_t pair, float scale, float reciprocal) {
  const float2 scaled =
      make_float2(__uint_as_float(pair << 16) * reciprocal, __uint_as_float(pair & 0xFFFF0000U) * reciprocal);
  const __nv_fp8x2_storage_t codes = __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, __NV_E4M3);
  const float2 wide = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3)));
  return __byte_perm(__float_as_uint(wide.x * scale), __float_as_uint(wide.y * scale), 0x7632);
}

// Rows of bf16, row(i) each, to shared memory, rounded to FP8 in groups of 128 where the weight asks for it. cols is a
// multiple of eight and rows are aligned to 16 bytes.
template <MatmulKind kKind, typename Row>
__device__ void LoadStreamRows(uint16_t* shared, int num_rows, int cols, bool quantize, Row&& row) {
  constexpr int kAtOnce = 4;  // Loads that are under way together.
  const int stride = static_cast<int>(StreamRow(cols));
  const int chunks = (stride - 8) / 8;  // A multiple of 16: half a warp is a group.
  const int total = num_rows * chunks;
  const unsigned half = 0xFFFFU << (threadIdx.x & 16U);
  for (int first = static_cast<int>(threadIdx.x); first < total; first += kAtOnce * kMatmulThreads) {
    uint4 x[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int i = first + k * kMatmulThreads;
      const int col = i % chunks * 8;
      x[k] = make_uint4(0, 0, 0, 0);
      if (i < total && col < cols) x[k] = *reinterpret_cast<const uint4*>(row(i / chunks) + col);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int i = first + k * kMatmulThreads;
      if (i >= total) break;
      const int col = i % chunks * 8;
      if (quantize) {
        const auto larger = [](float max, uint32_t pair) {
          return fmaxf(max,
                       fmaxf(fabsf(__uint_as_float(pair << 16)), fabsf(__uint_as_float(pair & 0xFFFF0000U))));
        };
        float max = larger(larger(larger(larger(0.0F, x[k].x), x[k].y), x[k].z), x[k].w);
#pragma unroll
        for (int offset = 8; offset > 0; offset /= 2) max = fmaxf(max, __shfl_xor_sync(half, max, offset));
        const float scale = Fp8GroupScale(max);
        const float reciprocal = 1.0F / scale;
        // What lies past the last column stays zero, also when the scale is infinite.
        if (col < cols) {
          x[k] = make_uint4(
              RoundPairToFp8(x[k].x, scale, reciprocal), RoundPairToFp8(x[k].y, scale, reciprocal),
              RoundPairToFp8(x[k].z, scale, reciprocal), RoundPairToFp8(x[k].w, scale, reciprocal));
        }
      }
      *reinterpret_cast<uint4*>(shared + i / chunks * stride + col) = InWeightOrder<kKind>(x[k]);
    }
  }
}

// --- Weights ---------------------------------------------------------------------------------------------------------

// Units of columns in flight at a time; wider elements have more of them in as many registers.
template <MatmulKind kKind>
inline constexpr int kStreamUnits = kKind == MatmulKind::kMmaBf16 ? 8 : 4;

// Blocks a processor, as registers allow.
template <MatmulKind kKind>
inline constexpr int kStreamBlocks = kKind == MatmulKind::kMmaBf16 ? 1 : 2;

template <MatmulKind kKind>
struct StreamStage {
  uint4 raw[kStreamUnits<kKind>][2];
  typename Unpack<kKind>::Codes codes[kStreamUnits<kKind>][2];
};

// What a lane needs to know of the two rows it reads of a tile.
struct StreamRows {
  const uint8_t* data[2];  // At the lane's place in the row; null past the last row.
  int64_t scale[2];        // Where the row's scales begin.
};

// A matrix among those of one shape.
struct StreamMatrix {
  const uint8_t* data;
  const void* scale;
  float global_scale;
};

// The columns of this warp.
struct StreamSegment {
  int begin;
  int end;
};

template <MatmulKind kKind>
__device__ __forceinline__ StreamSegment SegmentOfWarp(int cols) {
  const int segment_cols = SegmentCols<kKind>(cols);
  const int begin = static_cast<int>(threadIdx.x) / 32 * segment_cols;
  return {begin, min(cols, begin + segment_cols)};
}

template <MatmulKind kKind>
__device__ __forceinline__ StreamRows RowsOfLane(const DeviceWeight& shape, const StreamMatrix& matrix,
                                                 int first_row, int row_end) {
  constexpr int kValues = Unpack<kKind>::kValues;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row_bytes = shape.cols * 16 / kValues;
  StreamRows rows;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_row + lane / 4 + r * 8;
    rows.data[r] = row < row_end ? matrix.data + row * row_bytes + lane % 4 * 16 : nullptr;
    rows.scale[r] = Unpack<kKind>::ScaleRow(shape, row);
  }
  return rows;
}

template <MatmulKind kKind>
__device__ __forceinline__ void LoadStage(StreamStage<kKind>& stage, const DeviceWeight& shape,
                                          const StreamMatrix& matrix, const StreamRows& rows, int col,
                                          int end) {
  using Format = Unpack<kKind>;
  constexpr int kUnit = 4 * Format::kValues;
  const int place = static_cast<int>(threadIdx.x) % 4 * Format::kValues;
#pragma unroll
  for (int u = 0; u < kStreamUnits<kKind>; ++u) {
    const int unit = col + u * kUnit;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      stage.raw[u][r] = make_uint4(0, 0, 0, 0);
      stage.codes[u][r] = {};
      if (rows.data[r] != nullptr && unit + place < end)
        stage.raw[u][r] = LoadStream(rows.data[r] + static_cast<int64_t>(unit) * 16 / Format::kValues);
      // A scale of sums belongs to the unit, also in lanes that lie past the last column.
      const int scale_col = Format::kScaledSums ? unit : unit + place;
      if (rows.data[r] != nullptr && scale_col < end)
        stage.codes[u][r] = Format::LoadCodes(shape, matrix.scale, rows.scale[r], scale_col);
    }
  }
}

template <MatmulKind kKind>
__device__ __forceinline__ void MultiplyStage(float (&sums)[4], const StreamStage<kKind>& stage,
                                              const uint16_t* x_row, int col, int end) {
  using Format = Unpack<kKind>;
  constexpr int kUnit = 4 * Format::kValues;
  const int place = static_cast<int>(threadIdx.x) % 4 * Format::kValues;
#pragma unroll
  for (int u = 0; u < kStreamUnits<kKind>; ++u) {
    if (col + u * kUnit >= end) break;
    const uint32_t words[2][4] = {
        {stage.raw[u][0].x, stage.raw[u][0].y, stage.raw[u][0].z, stage.raw[u][0].w},
        {stage.raw[u][1].x, stage.raw[u][1].y, stage.raw[u][1].z, stage.raw[u][1].w}};
    const typename Format::Scales low = Format::Expand(stage.codes[u][0]);
    const typename Format::Scales high = Format::Expand(stage.codes[u][1]);
    float unit_sums[4] = {};
    float(&target)[4] = Format::kScaledSums ? unit_sums : sums;
#pragma unroll
    for (int chunk = 0; chunk < Format::kValues / 8; ++chunk) {
      uint4 x = make_uint4(0, 0, 0, 0);
      if (x_row != nullptr) x = *reinterpret_cast<const uint4*>(x_row + col + u * kUnit + place + chunk * 8);
        // Two steps of eight columns a lane.
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const int i = chunk * 4 + step * 2;
        const uint32_t a[4] = {Format::Widen(words[0], low, i) | (i == 0 ? Format::Poison(words[0]) : 0U),
                               Format::Widen(words[1], high, i) | (i == 0 ? Format::Poison(words[1]) : 0U),
                               Format::Widen(words[0], low, i + 1), Format::Widen(words[1], high, i + 1)};
        Mma(target, a, step == 0 ? x.x : x.z, step == 0 ? x.y : x.w);
      }
    }
    if constexpr (Format::kScaledSums) {
      sums[0] = fmaf(unit_sums[0], low.block, sums[0]);
      sums[1] = fmaf(unit_sums[1], low.block, sums[1]);
      sums[2] = fmaf(unit_sums[2], high.block, sums[2]);
      sums[3] = fmaf(unit_sums[3], high.block, sums[3]);
    }
  }
}

// --- The pipeline ----------------------------------------------------------------------------------------------------

// Row tile `first_row` of `matrix`, up to row_end, times the tokens that begin at `x` in shared memory.
struct StreamItem {
  StreamMatrix matrix;
  int first_row;
  int row_end;
  const uint16_t* x;
};

// Works through items 0 to num_items - 1, item(i) each, of matrices that are all of `shape`. prepare() is called once, by all
// threads, when the first weights are under way: it waits for the kernels before and fills shared memory. emit(i, item,
// token, row, sum) is called for every result, item by item; a token and row of a tile are always the same thread's.
template <MatmulKind kKind, typename Item, typename Prepare, typename Emit>
__device__ void StreamItems(const DeviceWeight& shape, int num_items, int num_tokens, Item&& item,
                            Prepare&& prepare, Emit&& emit) {
  using Format = Unpack<kKind>;
  constexpr int kStep = kStreamUnits<kKind> * 4 * Format::kValues;
  __shared__ PartialSums<1> partial[2];
  const int cols = static_cast<int>(shape.cols);
  const StreamSegment segment = SegmentOfWarp<kKind>(cols);
  const int num_segments = NumSegments<kKind>(cols);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = lane / 4;
  const int place = lane % 4;
  const int x_stride = static_cast<int>(StreamRow(cols));
  // Every warp takes as many steps as the first, so that all meet at the end of a tile.
  const int steps = (SegmentCols<kKind>(cols) + kStep - 1) / kStep;

  // What is loaded next.
  int next_item = 0;
  int next_step = 0;
  StreamItem loading = item(0);
  StreamRows rows = RowsOfLane<kKind>(shape, loading.matrix, loading.first_row, loading.row_end);
  const auto load = [&](StreamStage<kKind>& stage) {
    if (next_item == num_items) return;
    LoadStage<kKind>(stage, shape, loading.matrix, rows, segment.begin + next_step * kStep, segment.end);
    if (++next_step < steps) return;
    next_step = 0;
    if (++next_item == num_items) return;
    loading = item(next_item);
    rows = RowsOfLane<kKind>(shape, loading.matrix, loading.first_row, loading.row_end);
  };

  StreamStage<kKind> stages[2];
  load(stages[0]);
  prepare();

  float sums[4] = {};
  int current = 0;
  int step = 0;
  const auto multiply = [&](const StreamStage<kKind>& stage) {
    const StreamItem now = item(current);
    MultiplyStage<kKind>(sums, stage, group < num_tokens ? now.x + group * x_stride : nullptr,
                         segment.begin + step * kStep, segment.end);
    if (++step < steps) return;
    PartialSums<1>& results = partial[current % 2];
    results[warp][place * 2][group] = sums[0];
    results[warp][place * 2 + 1][group] = sums[1];
    results[warp][place * 2][group + 8] = sums[2];
    results[warp][place * 2 + 1][group + 8] = sums[3];
    sums[0] = sums[1] = sums[2] = sums[3] = 0.0F;
    step = 0;
    // The other half of `partial` is free: its readers have passed the barrier of their own item.
    __syncthreads();
    const int i = static_cast<int>(threadIdx.x);
    if (i < num_tokens * kTileRows && now.first_row + i % kTileRows < now.row_end) {
      const int token = i / kTileRows;
      float sum = results[0][token][i % kTileRows];
      for (int s = 1; s < num_segments; ++s) sum += results[s][token][i % kTileRows];
      emit(current, now, token, now.first_row + i % kTileRows,
           Format::Finish(shape.global_scale_divides, now.matrix.global_scale, sum));
    }
    ++current;
  };
  while (current < num_items) {
    load(stages[1]);
    multiply(stages[0]);
    if (current == num_items) break;
    load(stages[0]);
    multiply(stages[1]);
  }
}

}  // namespace dsv4::backend::cuda
