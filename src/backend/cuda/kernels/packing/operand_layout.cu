// Kernels that pack activations and weights as bf16 in the tiles that wgmma and TMA read.
#include <algorithm>

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/numeric/swiglu_words.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/gemm/gemm_mma.cuh"
#include "backend/cuda/kernels/packing/operand_layout.h"
#include "backend/cuda/lowering/work/packing.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kGroup = static_cast<int>(kActivationBlock);  // Columns of half a warp, eight a lane.
static_assert(kGroup == 8 * 16 && kGroup == 2 * kPackedCols);
constexpr int kRounds = 4;  // Rows of two rows a warp, whose loads are in flight together.
constexpr int kRowsPerBlock = kWarps * kRounds * 2;

// Eight columns as they are loaded, and as words of two bf16, rounded to FP8 with the other lanes of the
// half.
template <typename T>
struct Eight;

template <>
struct Eight<Bf16> {
  uint4 raw;
  __device__ void Load(const Bf16* x) { raw = *reinterpret_cast<const uint4*>(x); }
  __device__ uint4 Words(int group) const {
    if (group == 0) return raw;
    const auto larger = [](float max, uint32_t pair) {
      return fmaxf(max,
                   fmaxf(fabsf(__uint_as_float(pair << 16)), fabsf(__uint_as_float(pair & 0xFFFF0000U))));
    };
    const float scale =
        Fp8GroupScale(GroupMax(larger(larger(larger(larger(0.0F, raw.x), raw.y), raw.z), raw.w), group));
    const float reciprocal = 1.0F / scale;
    return make_uint4(Round(raw.x, scale, reciprocal), Round(raw.y, scale, reciprocal),
                      Round(raw.z, scale, reciprocal), Round(raw.w, scale, reciprocal));
  }
  // The largest over lanes that have a group of 32 or 128 columns.
  static __device__ float GroupMax(float value, int group) {
    for (int offset = group / 16; offset > 0; offset /= 2)
      value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, offset));
    return value;
  }
  // Scales are powers of two, and what comes back is exact in bf16: the high half of the float.
  static __device__ uint32_t Round(uint32_t pair, float scale, float reciprocal) {
    const float2 scaled = make_float2(__uint_as_float(pair << 16) * reciprocal,
                                      __uint_as_float(pair & 0xFFFF0000U) * reciprocal);
    const __nv_fp8x2_storage_t codes = __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, __NV_E4M3);
    const float2 wide = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3)));
    return __byte_perm(__float_as_uint(wide.x * scale), __float_as_uint(wide.y * scale), 0x7632);
  }
};

template <>
struct Eight<float> {
  float4 raw[2];
  __device__ void Load(const float* x) {
    raw[0] = reinterpret_cast<const float4*>(x)[0];
    raw[1] = reinterpret_cast<const float4*>(x)[1];
  }
  __device__ uint4 Words(int group) const {
    float values[8] = {raw[0].x, raw[0].y, raw[0].z, raw[0].w, raw[1].x, raw[1].y, raw[1].z, raw[1].w};
    if (group != 0) {
      float max = 0.0F;
#pragma unroll
      for (const float value : values) max = fmaxf(max, fabsf(value));
      const float scale = Fp8GroupScale(Eight<Bf16>::GroupMax(max, group));
#pragma unroll
      for (float& value : values) value = RoundToFp8Grid(value, scale);
    }
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      words[i] = Bf16FromFloat(values[2 * i]) | static_cast<uint32_t>(Bf16FromFloat(values[2 * i + 1])) << 16;
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
};

struct E4m3 {
  uint8_t code;
};

template <>
struct Eight<E4m3> {
  uint2 raw;
  __device__ void Load(const E4m3* x) { raw = *reinterpret_cast<const uint2*>(x); }
  __device__ uint4 Words(int) const {
    return make_uint4(Widen(raw.x), Widen(raw.x >> 16), Widen(raw.y), Widen(raw.y >> 16));
  }
  // Two codes; three bits of mantissa fit in the high half of a float.
  static __device__ uint32_t Widen(uint32_t codes) {
    const float2 wide = WideE4m3(static_cast<uint16_t>(codes));
    return __byte_perm(__float_as_uint(wide.x), __float_as_uint(wide.y), 0x7632);
  }
};

// Target of a row of a weight: of 16, the even ones first.
__device__ __forceinline__ int64_t PlaceOfWeightRow(int64_t row) {
  return row / 16 * 16 + row % 2 * 8 + row % 16 / 2;
}

// Pairs of columns, as Unpack<kKind>::Widen gives them, are words once eight columns are in its order. The
// steps want the first pairs of the four lanes, then their second pairs. So sixteen lanes exchange words
// through shared memory.
// Grid: rows by kRowsPerBlock, groups of columns.
// What a row is.
enum class RowKind : uint8_t { kTokens, kGateAndUp, kWeights };

template <MatmulKind kKind, typename T, RowKind kRow>
__global__ void __launch_bounds__(32 * kWarps)
    OperandLayoutPackKernel(const RowSource source, uint16_t* packed, int64_t packed_rows, int group) {
  constexpr int kValues = Unpack<kKind>::kValues;
  constexpr int kUnit = 4 * kValues;
  __shared__ __align__(16) uint32_t shared[2 * kWarps][kGroup / 2];
  BeginKernel();
  const int half_warp = static_cast<int>(threadIdx.x) / 16;
  const int lane = static_cast<int>(threadIdx.x) % 16;
  const int64_t first = blockIdx.x * int64_t{kRowsPerBlock} + half_warp;
  Eight<T> pieces[kRounds];
  [[maybe_unused]] Eight<T> ups[kRounds];
  [[maybe_unused]] float row_weights[kRounds];
  bool exists[kRounds];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int64_t row = first + i * (2 * kWarps);
    int64_t origin = row;
    exists[i] = row < source.num_rows;
    if (exists[i] && source.origins != nullptr) {
      const int32_t of = source.origins[row];
      exists[i] = of >= 0;
      if (source.divisor != 0) origin = of / source.divisor;
    }
    pieces[i] = {};
    if (!exists[i]) continue;
    const T* const from =
        static_cast<const T*>(source.x) + origin * source.stride + blockIdx.y * int64_t{kGroup} + lane * 8;
    pieces[i].Load(from);
    if constexpr (kRow == RowKind::kGateAndUp) {
      ups[i].Load(from + source.stride / 2);
      row_weights[i] = source.row_weights[source.origins[row]];
    }
  }
  if constexpr (kRow == RowKind::kGateAndUp) {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      if (exists[i]) pieces[i].raw = SwigluWords(pieces[i].raw, ups[i].raw, source.limit, row_weights[i]);
    }
  }
  // Weights of kMmaMxFp8, eight columns of a row: scaled.
  const auto scaled = [&](uint4 words, int64_t row) {
    if constexpr (kRow == RowKind::kWeights && kKind == MatmulKind::kMmaMxFp8) {
      const auto block = static_cast<int>(blockIdx.y * (kGroup / kMxFp8Block) + lane / 4);
      const int64_t scale_row = (min(row, source.num_rows - 1) >> source.block_rows_log2) * source.scale_cols;
      const PairScale scale = PairScale::OfE8m0(source.scales[scale_row + block]);
      return make_uint4(MulBf16x2(words.x, scale.block), MulBf16x2(words.y, scale.block),
                        MulBf16x2(words.z, scale.block), MulBf16x2(words.w, scale.block));
    }
    return words;
  };
  // This lane's piece of eight elements of the steps: pair `pair` of each of the four lanes of unit `unit`.
  const int unit = lane / (kUnit / 8);
  const int pair = lane % (kUnit / 8);
  const int from = unit * (kUnit / 2) + pair;
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    __syncwarp();
    *reinterpret_cast<uint4*>(&shared[half_warp][lane * 4]) =
        InWeightOrder<kKind>(scaled(pieces[i].Words(group), first + i * (2 * kWarps)));
    __syncwarp();
    const uint32_t* const words = shared[half_warp] + from;
    const uint4 piece =
        make_uint4(words[0], words[kValues / 2], words[kValues], words[kValues + kValues / 2]);
    int64_t row = first + i * (2 * kWarps);
    if constexpr (kRow == RowKind::kWeights) row = PlaceOfWeightRow(row);
    const int64_t block = blockIdx.y * int64_t{2} + lane / 8;
    const int place = (lane % 8) ^ static_cast<int>(row % kPackedRows);
    if (exists[i])
      *reinterpret_cast<uint4*>(packed + (block * packed_rows + row) * kPackedCols + place * 8) = piece;
  }
}

template <MatmulKind kKind, typename T, RowKind kRow>
void Launch(LaunchContext& context, const RowSource& source, uint16_t* packed, int64_t packed_rows,
            int64_t cols, int group) {
  const dim3 grid(static_cast<unsigned>(CeilDiv(source.num_rows, kRowsPerBlock)),
                  static_cast<unsigned>(cols / kGroup));
  context.Launch(OperandLayoutPackKernel<kKind, T, kRow>, grid, 32 * kWarps, 0, source, packed, packed_rows,
                 group);
}

PackedTokensWork PackedTokensOf(const RowSource& source, int64_t cols, int group, MatmulKind kind,
                                const PackedRows& packed) {
  return {.x = source.x,
          .dtype = source.dtype,
          .stride = source.stride,
          .num_rows = source.num_rows,
          .cols = cols,
          .group = group,
          .kind = kind,
          .packed = packed.data,
          .packed_rows = packed.num_rows};
}

void LaunchPack(LaunchContext& context, const RowSource& source, uint16_t* packed, int64_t rows, int64_t cols,
                int group, MatmulKind kind) {
  // Tokens of both orders of MXFP4 lie alike.
  WithMmaKind(IsMxFp4(kind) ? MatmulKind::kMmaMxFp4 : kind, [&]<MatmulKind kKind>() {
    if (source.row_weights != nullptr) {
      Launch<kKind, Bf16, RowKind::kGateAndUp>(context, source, packed, rows, cols, group);
      return;
    }
    WithElement(source.dtype, [&]<typename T>(T*) {
      Launch<kKind, T, RowKind::kTokens>(context, source, packed, rows, cols, group);
    });
  });
}

}  // namespace

Result<PackedRows> Pack(LaunchContext& context, const RowSource& source, int64_t cols, int group,
                        MatmulKind kind, int64_t row_multiple) {
  const int64_t rows = CeilDiv(source.num_rows, row_multiple) * row_multiple;
  DSV4_ASSIGN_OR_RETURN(uint16_t* const packed, context.Scratch<uint16_t>(rows * cols));
  LaunchPack(context, source, packed, rows, cols, group, kind);
  return PackedRows{packed, rows};
}

Result<PackedRows> PackTokens(LaunchContext& context, const RowSource& source, int64_t cols, int group,
                              MatmulKind kind, int64_t row_multiple) {
  const int64_t rows = CeilDiv(source.num_rows, row_multiple) * row_multiple;
  DSV4_ASSIGN_OR_RETURN(uint16_t* const packed, context.Scratch<uint16_t>(rows * cols));
  const PackedRows result = {packed, rows};
  if (!context.FindsPacked(PackedTokensOf(source, cols, group, kind, result))) {
    LaunchPack(context, source, packed, rows, cols, group, kind);
  }
  return result;
}

void KeepPackedTokens(LaunchContext& context, const RowSource& source, int64_t cols, int group,
                      MatmulKind kind, const PackedRows& packed, const TensorView& y, int64_t y_stride) {
  const auto x_bytes = static_cast<size_t>(source.num_rows * source.stride * ElementBytes(source.dtype));
  const auto y_bytes = static_cast<size_t>(y.shape[0] * y_stride * ElementBytes(y.dtype));
  context.NotePacked(PackedTokensOf(source, cols, group, kind, packed), {source.x, x_bytes},
                     {y.data, y_bytes});
}

Result<PackedRows> PackWeight(LaunchContext& context, const DeviceWeight& weight, int64_t num_rows) {
  constexpr int64_t kRowsTogether = 16;
  const int64_t rows = CeilDiv(std::max(num_rows, weight.rows), kRowsTogether) * kRowsTogether;
  DSV4_ASSIGN_OR_RETURN(uint16_t* const packed, context.Scratch<uint16_t>(rows * weight.cols));
  const RowSource source = {.x = weight.data,
                            .dtype = weight.data_dtype,
                            .stride = weight.cols,
                            .num_rows = weight.rows,
                            .scales = static_cast<const uint8_t*>(weight.scale),
                            .scale_cols = static_cast<int>(weight.scale_cols),
                            .block_rows_log2 = weight.block_rows_log2};
  if (weight.kind == MatmulKind::kMmaMxFp8) {
    Launch<MatmulKind::kMmaMxFp8, E4m3, RowKind::kWeights>(context, source, packed, rows, weight.cols, 0);
  } else if (weight.kind == MatmulKind::kMmaFp8) {
    Launch<MatmulKind::kMmaFp8, E4m3, RowKind::kWeights>(context, source, packed, rows, weight.cols, 0);
  } else {
    Launch<MatmulKind::kMmaBf16, Bf16, RowKind::kWeights>(context, source, packed, rows, weight.cols, 0);
  }
  return PackedRows{packed, rows};
}

}  // namespace dsv4::backend::cuda
