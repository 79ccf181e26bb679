// Gate and up in bf16, eight columns at a time, as where rows are packed.
#pragma once

#include "backend/cuda/device/numeric/swiglu.cuh"

namespace dsv4::backend::cuda {

// The activations of two elements in bf16, with the bits of ClampedSwiglu.
inline __device__ __noinline__ uint32_t SwigluWordInDouble(uint32_t gates, uint32_t ups, float limit,
                                                           float row_weight) {
  uint32_t word = 0;
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    const double y = ClampedSwiglu(static_cast<double>(__uint_as_float(gates << 16)),
                                   static_cast<double>(__uint_as_float(ups << 16)),
                                   static_cast<double>(limit), static_cast<double>(row_weight));
    word = word >> 16 | static_cast<uint32_t>(Bf16FromFloat(static_cast<float>(y))) << 16;
    gates >>= 16;
    ups >>= 16;
  }
  return word;
}

// One in fp32, off by less than 2^-20: 2^-22 for ex2.approx, 2^-23 for the reciprocal, and 2^-24 each for
// what the exponential is rounded to, the sum and the three products: 11 * 2^-24 in all. So it is where
// `is_sure` stays; where something overflows, underflows or is NaN it does not.
__device__ __forceinline__ float FastSwiglu(float gate, float up, float limit, float row_weight,
                                            bool& is_sure) {
  constexpr float kLog2E = 0x1.715476p+0F;
  constexpr float kLog2ERest = 0x1.4ae0cp-26F;
  constexpr float kLn2 = 0x1.62e43p-1F;
  constexpr float kSmall = 0x1p-100F;
  float g;
  float u;
  // NaN stays NaN.
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(g) : "f"(gate), "f"(limit));
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(u) : "f"(up), "f"(-limit));
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(u) : "f"(limit));
  const float power = -g * kLog2E;
  const float rest = fmaf(-g, kLog2ERest, fmaf(-g, kLog2E, -power));
  float whole;
  float reciprocal;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(whole) : "f"(power));
  const float exponential = fmaf(whole, rest * kLn2, whole);
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(1.0F + exponential));
  const float product = g * reciprocal * u;
  const float y = row_weight * product;
  is_sure = is_sure && fabsf(product) > kSmall && fabsf(y) > kSmall && fabsf(y) < 0x1p100F;
  return y;
}

// SwiGLU of two columns of gate and up: in fp32 where that leaves no doubt about the rounding, in double
// where it does.
__device__ __forceinline__ uint32_t SwigluWord(uint32_t gates, uint32_t ups, float limit, float row_weight,
                                               bool& is_sure) {
  constexpr float kDoubt = 0x1p-19F;
  const float low =
      FastSwiglu(__uint_as_float(gates << 16), __uint_as_float(ups << 16), limit, row_weight, is_sure);
  const float high = FastSwiglu(__uint_as_float(gates & 0xFFFF0000U), __uint_as_float(ups & 0xFFFF0000U),
                                limit, row_weight, is_sure);
  const uint32_t word = Bf16Pair(fmaf(low, kDoubt, low), fmaf(high, kDoubt, high));
  is_sure = is_sure && word == Bf16Pair(fmaf(low, -kDoubt, low), fmaf(high, -kDoubt, high));
  return word;
}

// The same for eight.
__device__ __forceinline__ uint4 SwigluWords(uint4 gate, uint4 up, float limit, float row_weight) {
  const uint32_t gates[4] = {gate.x, gate.y, gate.z, gate.w};
  const uint32_t ups[4] = {up.x, up.y, up.z, up.w};
  uint32_t words[4];
  bool is_sure[4] = {true, true, true, true};
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = SwigluWord(gates[i], ups[i], limit, row_weight, is_sure[i]);
  if (!(is_sure[0] && is_sure[1] && is_sure[2] && is_sure[3])) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!is_sure[i]) words[i] = SwigluWordInDouble(gates[i], ups[i], limit, row_weight);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace dsv4::backend::cuda
