// W x in fp32 multiply-adds, for what the tensor cores do not take: one warp a row of weights, up to
// kGeneralTokens tokens. A lane adds every 32nd pair of columns; the lanes' sums meet in a fixed order.
#pragma once

#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/kernels/gemm/gemm_mma.cuh"
#include "backend/cuda/weights/e2m1_order.h"

namespace dsv4::backend::cuda {

inline constexpr int kGeneralTokens = 8;
inline constexpr int kGeneralRows = kMatmulThreads / 32;

// Number i of a matrix of e2m1.
__device__ inline float E2m1At(const DeviceWeight& w, int64_t i) {
  uint32_t tiny = 0;  // As an fp32, times 2^-126.
  if (w.repacked) {
    const uint2 block = reinterpret_cast<const uint2*>(w.data)[i / kNvFp4Block];
    const auto place = static_cast<int>(i % kNvFp4Block);
    const uint32_t pair = OrderedE2m1Pair(block.x, block.y, place / 8 * 4 + place % 4);
    tiny = place % 8 < 4 ? pair << 16 : pair & 0xFFFF0000U;
  } else {
    const uint8_t byte = w.data[i / 2];
    const uint32_t code = i % 2 == 0 ? byte & 0xFU : byte >> 4;
    tiny = (code & 8U) << 28 | (code & 7U) << 22;
  }
  return __uint_as_float(tiny) * 0x1p126F;
}

// Weight (row, col) as formats/weight.h says.
__device__ inline float Dequantize(const DeviceWeight& w, int64_t row, int64_t col) {
  switch (w.format) {
    case WeightFormat::kPlain:
      if (w.data_dtype == DType::kF32) return reinterpret_cast<const float*>(w.data)[row * w.cols + col];
      if (w.data_dtype == DType::kF16)
        return ToFloat(reinterpret_cast<const F16*>(w.data)[row * w.cols + col]);
      return ToFloat(reinterpret_cast<const Bf16*>(w.data)[row * w.cols + col]);
    case WeightFormat::kFp8Block:
      return FromE4m3(w.data[row * w.cols + col]) *
             LoadScale(w.scale, w.scale_dtype, row / w.block_rows * w.scale_cols + col / w.block_cols);
    default:
      break;
  }
  const float value = E2m1At(w, row * w.cols + col);
  const auto* scales = static_cast<const uint8_t*>(w.scale) + row * w.scale_cols;
  if (w.format == WeightFormat::kMxFp4) return value * FloatFromE8m0(scales[col / kMxFp4Block]);
  const double scale = static_cast<double>(FromE4m3(scales[col / kNvFp4Block]));
  const double global = static_cast<double>(w.global_scale);
  return value * static_cast<float>(w.global_scale_divides ? scale / global : scale * global);
}

// X is Bf16 or float. token_row(i) is the row of token i < num_tokens; emit(i, sum) stores, called by one
// lane.
template <typename X, typename TokenRow, typename Emit>
__device__ void MultiplyRow(const DeviceWeight& w, int64_t row, int num_tokens, TokenRow&& token_row,
                            Emit&& emit) {
  const X* x[kGeneralTokens];
  float sums[kGeneralTokens] = {};
#pragma unroll
  for (int t = 0; t < kGeneralTokens; ++t) x[t] = token_row(t < num_tokens ? t : 0);
  const int64_t lane = threadIdx.x % 32;
#pragma unroll 4
  for (int64_t col = 2 * lane; col < w.cols; col += 64) {
    const float even = Dequantize(w, row, col);
    const bool has_odd = col + 1 < w.cols;
    const float odd = has_odd ? Dequantize(w, row, col + 1) : 0.0F;
#pragma unroll
    for (int t = 0; t < kGeneralTokens; ++t) {
      if (t >= num_tokens) break;
      sums[t] = fmaf(even, ToFloat(x[t][col]), sums[t]);
      if (has_odd) sums[t] = fmaf(odd, ToFloat(x[t][col + 1]), sums[t]);
    }
  }
#pragma unroll
  for (int t = 0; t < kGeneralTokens; ++t) {
    if (t >= num_tokens) break;
    const float sum = WarpSum(sums[t]);
    if (lane == 0) emit(t, sum);
  }
}

}  // namespace dsv4::backend::cuda
