// How kernels read and write tensors. Values widen on the way in. Every store is a rounding point: to fp32
// first, then to the dtype of the memory, with the bits of formats/number_formats.h.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "formats/number_formats.h"
#include "tensor/dtype.h"

namespace dsv4::backend::cuda {

// Element types as kernels name them: bf16 and f16 are their bits.
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

__device__ __forceinline__ float ToFloat(float value) { return value; }
__device__ __forceinline__ float ToFloat(Bf16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}
__device__ __forceinline__ float ToFloat(F16 value) { return __half2float(__ushort_as_half(value.bits)); }

template <typename T>
__device__ __forceinline__ T FromFloat(float value);
template <>
__device__ __forceinline__ float FromFloat<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ Bf16 FromFloat<Bf16>(float value) {
  return {Bf16FromFloat(value)};
}

// Two as neighbours in bf16, with the bits of Bf16FromFloat: arithmetic gives one NaN, which stays that.
__device__ __forceinline__ uint32_t Bf16Pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

template <typename T>
__device__ __forceinline__ double Load(const T* data, int64_t i) {
  return static_cast<double>(ToFloat(data[i]));
}
template <typename T>
__device__ __forceinline__ void Store(T* data, int64_t i, double value) {
  data[i] = FromFloat<T>(static_cast<float>(value));
}

// An intermediate that the release holds as a tensor of the activations' dtype (the reference's HeldAs).
template <typename T>
__device__ __forceinline__ double Held(double value) {
  return value;
}
template <>
__device__ __forceinline__ double Held<Bf16>(double value) {
  return static_cast<double>(RoundToBf16(static_cast<float>(value)));
}

// e4m3 and back, round to nearest even, saturating; NaN stays NaN.
__device__ __forceinline__ float FromE4m3(uint8_t code) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}
__device__ __forceinline__ float RoundToE4m3(float value) {
  return FromE4m3(__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3));
}

// The e2m1 grid, ties to the even code, saturating at 6; NaN, which e2m1 cannot hold, becomes 0.
__device__ __forceinline__ float RoundToE2m1(float value) {
  if (isnan(value)) return 0.0F;
  const float m = fminf(fabsf(value), 6.0F);
  float grid = 6.0F;
  if (m <= 0.25F) {
    grid = 0.0F;
  } else if (m < 0.75F) {
    grid = 0.5F;
  } else if (m <= 1.25F) {
    grid = 1.0F;
  } else if (m < 1.75F) {
    grid = 1.5F;
  } else if (m <= 2.5F) {
    grid = 2.0F;
  } else if (m < 3.5F) {
    grid = 3.0F;
  } else if (m <= 5.0F) {
    grid = 4.0F;
  }
  return copysignf(grid, value);
}

// 2^ceil(log2(max * reciprocal)) as formats/quantize.h defines it; infinity for an infinite maximum.
__device__ __forceinline__ float PowerOfTwoScale(float max, float reciprocal) {
  return __uint_as_float(static_cast<uint32_t>(CeilLog2(max * reciprocal) + 127) << 23);
}
__device__ __forceinline__ float Fp8GroupScale(float max) {
  return PowerOfTwoScale(fmaxf(max, 1e-4F), __uint_as_float(0x3B124925U));
}
__device__ __forceinline__ float RoundToFp8Grid(float value, float scale) {
  return RoundToE4m3(value / scale) * scale;
}

// Calls `f` with a null pointer of the element type that `dtype` (kF32 or kBF16) means.
template <typename F>
auto WithElement(DType dtype, F&& f) {
  return dtype == DType::kBF16 ? f(static_cast<Bf16*>(nullptr)) : f(static_cast<float*>(nullptr));
}

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace dsv4::backend::cuda
