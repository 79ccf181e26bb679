// Kernels that pack activations and weights as e4m3 codes in the tiles of FP8 wgmma.
#include <algorithm>

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/eight_columns.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/numeric/swiglu_words.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/packing/operand_layout_fp8.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kCols = static_cast<int>(kPackedFp8Cols);
constexpr int kPiece = 16;
constexpr int kRounds = 4;  // Rounds whose loads are in flight together.
static_assert(kCols == kActivationBlock && kCols == kEightColumns * 16);

// Address at which 16 bytes of a row lie.
__device__ __forceinline__ int64_t PlaceOfPiece(int64_t block, int64_t num_rows, int64_t row, int piece) {
  return (block * num_rows + row) * kCols + (piece ^ static_cast<int>(row % kPackedRows)) * kPiece;
}

// --- Activations -----------------------------------------------------------------------------------------------------

constexpr int kRowsPerBlock = kWarps * 2 * kRounds;  // A row is half a warp's, eight columns a lane.

// Eight columns as they are loaded.
template <typename T>
struct Eight;
template <>
struct Eight<Bf16> {
  uint4 words;
  __device__ void Load(const Bf16* x) { words = *reinterpret_cast<const uint4*>(x); }
  __device__ void Widen(float (&values)[8]) const {
    LoadEight(reinterpret_cast<const Bf16*>(&words), values);
  }
};
template <>
struct Eight<float> {
  float values_[8];
  __device__ void Load(const float* x) { LoadEight(x, values_); }
  __device__ void Widen(float (&values)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = values_[i];
  }
};

__device__ __forceinline__ float HalfWarpMax(float value) {
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, offset));
  return value;
}

__device__ __forceinline__ uint32_t FourCodes(float a, float b, float c, float d) {
  const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
  const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);
  return low | high << 16;
}

// Grid: rows by kRowsPerBlock, blocks of columns. kGateAndUp: rows of RowSource::row_weights.
template <typename T, bool kGateAndUp>
__global__ void __launch_bounds__(kThreads)
    OperandLayoutFp8PackKernel(const RowSource source, uint8_t* codes, float* scales, int64_t packed_rows) {
  BeginKernel();
  const int half_warp = static_cast<int>(threadIdx.x) / 16;
  const int lane = static_cast<int>(threadIdx.x) % 16;
  const int64_t block = blockIdx.y;
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
    const T* const from = static_cast<const T*>(source.x) + origin * source.stride + block * kCols + lane * 8;
    pieces[i].Load(from);
    if constexpr (kGateAndUp) {
      ups[i].Load(from + source.stride / 2);
      row_weights[i] = source.row_weights[source.origins[row]];
    }
  }
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    if constexpr (kGateAndUp) {
      if (exists[i])
        pieces[i].words = SwigluWords(pieces[i].words, ups[i].words, source.limit, row_weights[i]);
    }
    float values[8];
    pieces[i].Widen(values);
    float max = 0.0F;
#pragma unroll
    for (const float value : values) max = fmaxf(max, fabsf(value));
    const float scale = Fp8GroupScale(HalfWarpMax(max));
    const float reciprocal = 1.0F / scale;  // Exact: a power of two.
#pragma unroll
    for (float& value : values) value *= reciprocal;
    if (!exists[i]) continue;
    const int64_t row = first + i * (2 * kWarps);
    const uint2 eight = make_uint2(FourCodes(values[0], values[1], values[2], values[3]),
                                   FourCodes(values[4], values[5], values[6], values[7]));
    uint8_t* const to = codes + PlaceOfPiece(block, packed_rows, row, lane / 2) + lane % 2 * (kPiece / 2);
    *reinterpret_cast<uint2*>(to) = eight;
    if (lane == 0) scales[block * packed_rows + row] = scale;
  }
}

// --- Weights ---------------------------------------------------------------------------------------------------------

constexpr int kPiecesOfRow = kCols / kPiece;
constexpr int kWeightRows = kThreads / kPiecesOfRow;  // In a round.
constexpr int kWeightRowsPerBlock = kWeightRows * kRounds;

__device__ __forceinline__ int64_t PlaceOfWeightRow(int64_t row) {
  const int64_t r = row % 32;
  return row - r + r % 8 / 2 * 8 + r / 8 * 2 + r % 2;
}

// Grid: rows by kWeightRowsPerBlock, blocks of columns.
__global__ void __launch_bounds__(kThreads)
    OperandLayoutFp8PackWeightKernel(const uint8_t* data, int64_t rows, int64_t cols, uint8_t* codes,
                                     int64_t packed_rows) {
  BeginKernel();
  const int piece = static_cast<int>(threadIdx.x) % kPiecesOfRow;
  const int64_t first = blockIdx.x * int64_t{kWeightRowsPerBlock} + threadIdx.x / kPiecesOfRow;
  const int64_t block = blockIdx.y;
  uint4 pieces[kRounds];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int64_t row = first + i * kWeightRows;
    if (row < rows)
      pieces[i] = *reinterpret_cast<const uint4*>(data + row * cols + block * kCols + piece * kPiece);
  }
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int64_t row = first + i * kWeightRows;
    if (row < rows)
      *reinterpret_cast<uint4*>(codes + PlaceOfPiece(block, packed_rows, PlaceOfWeightRow(row), piece)) =
          pieces[i];
  }
}

dim3 Grid(int64_t rows, int rows_per_block, int64_t cols) {
  return {static_cast<unsigned>(CeilDiv(rows, rows_per_block)), static_cast<unsigned>(cols / kCols)};
}

}  // namespace

Result<PackedFp8> PackFp8(LaunchContext& context, const RowSource& source, int64_t cols,
                          int64_t row_multiple) {
  const int64_t rows = CeilDiv(source.num_rows, row_multiple) * row_multiple;
  DSV4_ASSIGN_OR_RETURN(uint8_t* const codes, context.Scratch<uint8_t>(rows * cols));
  DSV4_ASSIGN_OR_RETURN(float* const scales, context.Scratch<float>(rows * (cols / kCols)));
  const auto launch = [&](auto* kernel) {
    context.Launch(kernel, Grid(source.num_rows, kRowsPerBlock, cols), kThreads, 0, source, codes, scales,
                   rows);
  };
  if (source.row_weights != nullptr) {
    launch(OperandLayoutFp8PackKernel<Bf16, true>);
  } else {
    WithElement(source.dtype, [&]<typename T>(T*) { launch(OperandLayoutFp8PackKernel<T, false>); });
  }
  return PackedFp8{codes, scales, rows};
}

Result<PackedFp8> PackFp8Weight(LaunchContext& context, const DeviceWeight& weight, int64_t num_rows) {
  constexpr int64_t kRowsTogether = 32;
  const int64_t rows = CeilDiv(std::max(num_rows, weight.rows), kRowsTogether) * kRowsTogether;
  DSV4_ASSIGN_OR_RETURN(uint8_t* const codes, context.Scratch<uint8_t>(rows * weight.cols));
  context.Launch(OperandLayoutFp8PackWeightKernel, Grid(weight.rows, kWeightRowsPerBlock, weight.cols),
                 kThreads, 0, weight.data, weight.rows, weight.cols, codes, rows);
  return PackedFp8{codes, nullptr, rows};
}

}  // namespace dsv4::backend::cuda
