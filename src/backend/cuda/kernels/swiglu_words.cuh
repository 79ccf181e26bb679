// Gate and up in bf16, eight columns at a time, as where rows are packed.
#pragma once

#include "backend/cuda/kernels/swiglu.cuh"

namespace dsv4::backend::cuda {

// The activation of one element in bf16, with the bits of ClampedSwiglu: in fp32 where that leaves no doubt about the rounding, in
// double where it does. fp32 is off by less than 2^-20 here: 2^-22 each for ex2.approx and the quotient, two units in the
// last place, and 2^-24 each for what the exponential is rounded to, the sum and both products: 3 * 2^-22 in all.
inline __device__ __noinline__ uint16_t SwigluBitsInDouble(float gate, float up, float limit,
                                                           float row_weight) {
  return Bf16FromFloat(
      static_cast<float>(ClampedSwiglu(static_cast<double>(gate), static_cast<double>(up),
                                       static_cast<double>(limit), static_cast<double>(row_weight))));
}
__device__ __forceinline__ uint16_t SwigluBits(float gate, float up, float limit, float row_weight) {
  const float g = limit < gate ? limit : gate;
  const float u = up < -limit ? -limit : (limit < up ? limit : up);
  if (fabsf(g) < 80.0F) {
    constexpr float kLog2E = 0x1.715476p+0F;
    constexpr float kLog2ERest = 0x1.4ae0cp-26F;
    constexpr float kLn2 = 0x1.62e43p-1F;
    const float power = -g * kLog2E;
    const float rest = fmaf(-g, kLog2ERest, fmaf(-g, kLog2E, -power));
    float whole;
    asm("ex2.approx.f32 %0, %1;" : "=f"(whole) : "f"(power));
    const float exponential = fmaf(whole, rest * kLn2, whole);
    const float product = __fdividef(g, 1.0F + exponential) * u;
    const float y = row_weight * product;
    constexpr float kDoubt = 0x1p-19F;
    constexpr float kSmall = 0x1p-100F;
    if (fabsf(product) > kSmall && fabsf(y) > kSmall && fabsf(y) < 0x1p100F) {
      const uint16_t bits = Bf16FromFloat(fmaf(y, kDoubt, y));
      if (bits == Bf16FromFloat(fmaf(y, -kDoubt, y))) return bits;
    }
  }
  return SwigluBitsInDouble(gate, up, limit, row_weight);
}

// Of eight columns of gate and up.
__device__ __forceinline__ uint4 SwigluWords(uint4 gate, uint4 up, float limit, float row_weight) {
  const uint32_t gates[4] = {gate.x, gate.y, gate.z, gate.w};
  const uint32_t ups[4] = {up.x, up.y, up.z, up.w};
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t low =
        SwigluBits(__uint_as_float(gates[i] << 16), __uint_as_float(ups[i] << 16), limit, row_weight);
    const uint32_t high = SwigluBits(__uint_as_float(gates[i] & 0xFFFF0000U),
                                     __uint_as_float(ups[i] & 0xFFFF0000U), limit, row_weight);
    words[i] = low | high << 16;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace dsv4::backend::cuda
