// A tile of W x on tensor cores: 16 rows of weights times 8 * kTokenTiles tokens, by one block of eight
// warps.
//
// The weights are the A operand (16 rows, 16 columns of a step), the tokens the B operand (8 tokens). One
// token wastes seven columns of a unit that is idle anyway, and the weights are read once. Each lane reads 16
// bytes of its two rows at a time, which hold 8 to 32 weights, and widens them in registers. The columns of a
// row are dealt to the lanes of a group in that order, for weights and activations alike. So nothing is
// shuffled.
//
// The order of summation is fixed by the number of columns. They are cut into at most eight segments, one a
// warp. A segment's products are added in order, and so are the segments' sums. The number of tokens does not
// enter.
#pragma once

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/narrow_pairs.cuh"
#include "backend/cuda/device/ptx/shared_address.cuh"
#include "backend/cuda/weights/device_weight.h"
#include "backend/cuda/weights/e2m1_order.h"

namespace dsv4::backend::cuda {

inline constexpr int kTileRows = 16;
inline constexpr int kTokensPerTile = 8;
inline constexpr int kSegments = 8;
inline constexpr int kMatmulThreads = 32 * kSegments;

__device__ __forceinline__ void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four matrices of 8 x 8 bf16 numbers in shared memory as mma wants them; a lane names one row of 16 bytes.
__device__ __forceinline__ void LoadMatrices(uint32_t (&matrices)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(SharedAddress(row))
               : "memory");
}

__device__ __forceinline__ uint32_t Both(uint16_t bits) { return bits * 0x10001U; }

__device__ __forceinline__ uint4 LoadStream(const uint8_t* p) {
  return __ldg(reinterpret_cast<const uint4*>(p));
}

// One float of a block scale tensor.
__device__ __forceinline__ float LoadScale(const void* scale, DType dtype, int64_t i) {
  if (dtype == DType::kF8E8M0) return FloatFromE8m0(static_cast<const uint8_t*>(scale)[i]);
  if (dtype == DType::kBF16) return ToFloat(static_cast<const Bf16*>(scale)[i]);
  return static_cast<const float*>(scale)[i];
}

// How a format's 16 bytes become bf16. kValues: weights in 16 bytes; a unit is what four lanes read, 4 *
// kValues columns. Widen gives the lane's pair of weights i: two that lie kPairDistance apart among eight.
// kScaledSums: the block scale is applied to a unit's sums. Codes are scales as they are stored, Scales as
// they are applied.
template <MatmulKind kKind>
struct Unpack;

struct NoScale {};

template <>
struct Unpack<MatmulKind::kMmaBf16> {
  static constexpr int kValues = 8;
  static constexpr bool kScaledSums = false;
  static constexpr int kPairDistance = 1;
  using Codes = NoScale;
  using Scales = NoScale;
  static __device__ int64_t ScaleRow(const DeviceWeight&, int) { return 0; }
  static __device__ Codes LoadCodes(const DeviceWeight&, const void*, int64_t, int) { return {}; }
  static __device__ Scales Expand(Codes) { return {}; }
  static __device__ uint32_t Widen(const uint32_t (&words)[4], const Scales&, int i) { return words[i]; }
  static __device__ uint32_t Poison(const uint32_t (&)[4]) { return 0; }
  static __device__ float Finish(bool, float, float sum) { return sum; }
};

template <>
struct Unpack<MatmulKind::kMmaFp8> {
  static constexpr int kValues = 16;
  static constexpr bool kScaledSums = true;
  static constexpr int kPairDistance = 2;
  struct Scales {
    float block;
  };
  using Codes = Scales;
  static __device__ int64_t ScaleRow(const DeviceWeight& w, int row) {
    return (row >> w.block_rows_log2) * w.scale_cols;
  }
  static __device__ Codes LoadCodes(const DeviceWeight& w, const void* scale, int64_t scale_row, int col) {
    return {LoadScale(scale, w.scale_dtype, scale_row + (col >> w.block_cols_log2))};
  }
  static __device__ Scales Expand(Codes codes) { return codes; }
  // Bytes i and i + 2 of a word. Their bits as a bf16 are the value times 2^-kE4m3Shift, subnormals and all.
  static __device__ uint32_t Bits(const uint32_t (&words)[4], int i) {
    const uint32_t word = words[i / 2];
    const uint32_t magnitude = i % 2 == 0 ? word << 4 : word >> 4;
    const uint32_t sign = i % 2 == 0 ? word << 8 : word;
    return (magnitude & 0x07F007F0U) | (sign & 0x80008000U);
  }
  static __device__ uint32_t Widen(const uint32_t (&words)[4], const Scales&, int i) {
    constexpr uint16_t kTwoTo120 = (kE4m3Shift + 127) << 7;
    return MulBf16x2(Bits(words, i), Both(kTwoTo120));
  }
  // A NaN among the weights, whose code Widen takes for a number: bits that make any bf16 a NaN.
  static __device__ uint32_t Poison(const uint32_t (&words)[4]) {
    uint32_t carries = 0;
#pragma unroll
    for (const uint32_t word : words) carries |= (word & 0x7F7F7F7FU) + 0x01010101U;
    return (carries & 0x80808080U) != 0 ? 0x7FC07FC0U : 0U;
  }
  static __device__ float Finish(bool, float, float sum) { return sum; }
};

// A power of two as it scales a pair of bf16.
struct PairScale {
  uint32_t block;
  static __device__ PairScale OfE8m0(uint8_t code) {
    return {Both(code == 0 ? uint16_t{0x0040} : static_cast<uint16_t>(code << 7))};
  }
  // Times 2^by, which is a number that bf16 has: prepare_weight keeps larger scales from these kernels.
  static __device__ PairScale OfE8m0Times(uint8_t code, int by) {
    return {Both(static_cast<uint16_t>((code + by) << 7))};
  }
};

// FP8 in blocks of kMxFp8Block columns: a lane's 16 lie in one. Weights are scaled, which is exact, as they are
// widened.
template <>
struct Unpack<MatmulKind::kMmaMxFp8> {
  using Codes8 = Unpack<MatmulKind::kMmaFp8>;
  static constexpr int kValues = 16;
  static constexpr bool kScaledSums = false;
  static constexpr int kPairDistance = 2;
  using Scales = PairScale;
  using Codes = uint8_t;
  static __device__ int64_t ScaleRow(const DeviceWeight& w, int row) { return Codes8::ScaleRow(w, row); }
  static __device__ Codes LoadCodes(const DeviceWeight&, const void* scale, int64_t scale_row, int col) {
    return __ldg(static_cast<const uint8_t*>(scale) + scale_row + col / static_cast<int>(kMxFp8Block));
  }
  static __device__ Scales Expand(Codes code) { return PairScale::OfE8m0Times(code, kE4m3Shift); }
  static __device__ uint32_t Widen(const uint32_t (&words)[4], const Scales& scales, int i) {
    return MulBf16x2(Codes8::Bits(words, i), scales.block);
  }
  static __device__ uint32_t Poison(const uint32_t (&words)[4]) { return Codes8::Poison(words); }
  static __device__ float Finish(bool, float, float sum) { return sum; }
};

template <>
struct Unpack<MatmulKind::kMmaMxFp4> {
  static constexpr int kValues = 32;
  static constexpr bool kScaledSums = false;
  static constexpr int kPairDistance = 4;
  using Scales = PairScale;
  using Codes = uint8_t;
  static __device__ int64_t ScaleRow(const DeviceWeight& w, int row) { return row * w.scale_cols; }
  // The lane's 32 columns are one block.
  static __device__ Codes LoadCodes(const DeviceWeight&, const void* scale, int64_t scale_row, int col) {
    return __ldg(static_cast<const uint8_t*>(scale) + scale_row + col / kMxFp4Block);
  }
  static __device__ Scales Expand(Codes code) { return PairScale::OfE8m0Times(code, kE2m1Shift); }
  static __device__ uint32_t Widen(const uint32_t (&words)[4], const Scales& scales, int i) {
    const int block = i / 8;
    return MulBf16x2(OrderedE2m1Pair(words[2 * block], words[2 * block + 1], i % 8), scales.block);
  }
  static __device__ uint32_t Poison(const uint32_t (&)[4]) { return 0; }
  static __device__ float Finish(bool, float, float sum) { return sum; }
};

template <>
struct Unpack<MatmulKind::kMmaMxFp4Stored> : Unpack<MatmulKind::kMmaMxFp4> {
  static __device__ uint32_t Widen(const uint32_t (&words)[4], const Scales& scales, int i) {
    return MulBf16x2(StoredE2m1Pair(words[i / 4], i % 4), scales.block);
  }
  // The same where logical instructions are too many.
  static __device__ uint32_t WidenByProduct(const uint32_t (&words)[4], const Scales& scales, int i) {
    return MulBf16x2(StoredE2m1PairByProduct(words[i / 4], i % 4), scales.block);
  }
};

template <>
struct Unpack<MatmulKind::kMmaNvFp4> {
  static constexpr int kValues = 32;
  static constexpr bool kScaledSums = false;
  static constexpr int kPairDistance = 4;
  // e2m1 * 2^-126 times (scale * 2^100) is exact in bf16 for every e4m3 scale; the 2^26 that is missing comes
  // last.
  struct Scales {
    uint32_t blocks[2];
  };
  using Codes = uint16_t;  // Codes of the lane's two blocks.
  static __device__ int64_t ScaleRow(const DeviceWeight& w, int row) { return row * w.scale_cols; }
  static __device__ Codes LoadCodes(const DeviceWeight&, const void* scale, int64_t scale_row, int col) {
    return __ldg(reinterpret_cast<const uint16_t*>(static_cast<const uint8_t*>(scale) + scale_row +
                                                   col / kNvFp4Block));
  }
  static __device__ Scales Expand(Codes codes) {
    const float2 wide = WideE4m3(codes);
    return {{Both(static_cast<uint16_t>(__float_as_uint(wide.x * 0x1p100F) >> 16)),
             Both(static_cast<uint16_t>(__float_as_uint(wide.y * 0x1p100F) >> 16))}};
  }
  static __device__ uint32_t Widen(const uint32_t (&words)[4], const Scales& scales, int i) {
    const int block = i / 8;
    return MulBf16x2(OrderedE2m1Pair(words[2 * block], words[2 * block + 1], i % 8), scales.blocks[block]);
  }
  static __device__ uint32_t Poison(const uint32_t (&)[4]) { return 0; }
  static __device__ float Finish(bool global_scale_divides, float global_scale, float sum) {
    const double scaled = static_cast<double>(sum) * 0x1p26;
    const double global = static_cast<double>(global_scale);
    return static_cast<float>(global_scale_divides ? scaled / global : scaled * global);
  }
};

// A chunk of eight columns in the order of the pairs that Widen gives.
template <MatmulKind kKind>
__device__ __forceinline__ uint4 InWeightOrder(uint4 x) {
  const auto low = [](uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); };
  const auto high = [](uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); };
  if constexpr (Unpack<kKind>::kPairDistance == 2) {
    return make_uint4(low(x.x, x.y), high(x.x, x.y), low(x.z, x.w), high(x.z, x.w));
  } else if constexpr (Unpack<kKind>::kPairDistance == 4) {
    return make_uint4(low(x.x, x.z), high(x.x, x.z), low(x.y, x.w), high(x.y, x.w));
  } else {
    return x;
  }
}

// Columns of a warp's segment, and how many segments there are.
template <MatmulKind kKind>
__host__ __device__ constexpr int SegmentCols(int cols) {
  constexpr int kUnit = 4 * Unpack<kKind>::kValues;
  return ((cols + kUnit - 1) / kUnit + kSegments - 1) / kSegments * kUnit;
}
template <MatmulKind kKind>
__host__ __device__ constexpr int NumSegments(int cols) {
  return (cols + SegmentCols<kKind>(cols) - 1) / SegmentCols<kKind>(cols);
}

template <int kTokenTiles>
using PartialSums = float[kSegments][kTokenTiles * kTokensPerTile][kTileRows];

// Adds this warp's segment of columns into `partial`. The pointers x_rows are those of the lane's token of
// each tile, number lane / 4, null where there is none. Rows hold zeros up to the next multiple of
// kActivationPadding.
template <MatmulKind kKind, int kTokenTiles>
__device__ void MultiplySegment(const DeviceWeight& w, int64_t first_row, int64_t row_end,
                                const uint16_t* const (&x_rows)[kTokenTiles],
                                PartialSums<kTokenTiles>& partial) {
  using Format = Unpack<kKind>;
  constexpr int kValues = Format::kValues;
  constexpr int kUnit = 4 * kValues;
  constexpr int kUnitsAtOnce = kTokenTiles == 1 ? 4 : 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int segment = static_cast<int>(threadIdx.x) / 32;
  const int group = lane / 4;
  const int place = lane % 4;
  const int64_t segment_cols = SegmentCols<kKind>(static_cast<int>(w.cols));
  const int64_t begin = segment * segment_cols;
  const int64_t end = min(w.cols, begin + segment_cols);
  const int64_t row_bytes = w.cols * 16 / kValues;
  const int64_t rows[2] = {first_row + group, first_row + group + 8};

  float sums[kTokenTiles][4] = {};
  for (int64_t k = begin; k < end; k += kUnitsAtOnce * kUnit) {
    // All loads of weights first: they are what takes time.
    uint4 raw[kUnitsAtOnce][2];
    typename Format::Scales scales[kUnitsAtOnce][2];
#pragma unroll
    for (int u = 0; u < kUnitsAtOnce; ++u) {
      const int64_t col = k + u * kUnit + place * kValues;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        raw[u][r] = make_uint4(0, 0, 0, 0);
        scales[u][r] = {};
        if (col < end && rows[r] < row_end)
          raw[u][r] = LoadStream(w.data + rows[r] * row_bytes + col / kValues * 16);
        // A scale of sums belongs to the unit, also in lanes that lie past the last column.
        const int64_t scale_col = Format::kScaledSums ? k + u * kUnit : col;
        if (scale_col < end && rows[r] < row_end) {
          scales[u][r] = Format::Expand(Format::LoadCodes(
              w, w.scale, Format::ScaleRow(w, static_cast<int>(rows[r])), static_cast<int>(scale_col)));
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kUnitsAtOnce; ++u) {
      if (k + u * kUnit >= end) break;
      const int64_t col = k + u * kUnit + place * kValues;
      const uint32_t words[2][4] = {{raw[u][0].x, raw[u][0].y, raw[u][0].z, raw[u][0].w},
                                    {raw[u][1].x, raw[u][1].y, raw[u][1].z, raw[u][1].w}};
      float unit_sums[kTokenTiles][4] = {};
      float(&target)[kTokenTiles][4] = Format::kScaledSums ? unit_sums : sums;
#pragma unroll
      for (int chunk = 0; chunk < kValues / 8; ++chunk) {
        uint32_t a[2][4];  // Two steps of eight columns a lane.
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          const int i = chunk * 4 + step * 2;
          a[step][0] = Format::Widen(words[0], scales[u][0], i) | (i == 0 ? Format::Poison(words[0]) : 0U);
          a[step][1] = Format::Widen(words[1], scales[u][1], i) | (i == 0 ? Format::Poison(words[1]) : 0U);
          a[step][2] = Format::Widen(words[0], scales[u][0], i + 1);
          a[step][3] = Format::Widen(words[1], scales[u][1], i + 1);
        }
#pragma unroll
        for (int tile = 0; tile < kTokenTiles; ++tile) {
          uint4 x = make_uint4(0, 0, 0, 0);
          if (x_rows[tile] != nullptr) x = *reinterpret_cast<const uint4*>(x_rows[tile] + col + chunk * 8);
          x = InWeightOrder<kKind>(x);
          Mma(target[tile], a[0], x.x, x.y);
          Mma(target[tile], a[1], x.z, x.w);
        }
      }
      if constexpr (Format::kScaledSums) {
        // All lanes of a unit lie in one block: its width is a multiple of the unit's.
        const float low = scales[u][0].block;
        const float high = scales[u][1].block;
#pragma unroll
        for (int tile = 0; tile < kTokenTiles; ++tile) {
          sums[tile][0] = fmaf(unit_sums[tile][0], low, sums[tile][0]);
          sums[tile][1] = fmaf(unit_sums[tile][1], low, sums[tile][1]);
          sums[tile][2] = fmaf(unit_sums[tile][2], high, sums[tile][2]);
          sums[tile][3] = fmaf(unit_sums[tile][3], high, sums[tile][3]);
        }
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTokenTiles; ++tile) {
    const int token = tile * kTokensPerTile + place * 2;
    partial[segment][token][group] = sums[tile][0];
    partial[segment][token + 1][group] = sums[tile][1];
    partial[segment][token][group + 8] = sums[tile][2];
    partial[segment][token + 1][group + 8] = sums[tile][3];
  }
}

// The whole tile. token_row(i) is the row of token i of the tile, null past the last; emit(i, row, sum)
// stores.
template <MatmulKind kKind, int kTokenTiles, typename TokenRow, typename Emit>
__device__ void MultiplyTile(const DeviceWeight& w, int64_t first_row, int64_t row_end, int num_tokens,
                             TokenRow&& token_row, Emit&& emit) {
  __shared__ PartialSums<kTokenTiles> partial;
  const uint16_t* x_rows[kTokenTiles];
#pragma unroll
  for (int tile = 0; tile < kTokenTiles; ++tile) {
    const int token = tile * kTokensPerTile + static_cast<int>(threadIdx.x) % 32 / 4;
    x_rows[tile] = token < num_tokens ? token_row(token) : nullptr;
  }
  MultiplySegment<kKind, kTokenTiles>(w, first_row, row_end, x_rows, partial);
  __syncthreads();
  const int num_segments = NumSegments<kKind>(static_cast<int>(w.cols));
  for (int i = static_cast<int>(threadIdx.x); i < num_tokens * kTileRows; i += kMatmulThreads) {
    const int token = i / kTileRows;
    const int64_t row = first_row + i % kTileRows;
    if (row >= row_end) continue;
    float sum = partial[0][token][i % kTileRows];
    for (int segment = 1; segment < num_segments; ++segment) sum += partial[segment][token][i % kTileRows];
    emit(token, row, Unpack<kKind>::Finish(w.global_scale_divides, w.global_scale, sum));
  }
}

}  // namespace dsv4::backend::cuda
