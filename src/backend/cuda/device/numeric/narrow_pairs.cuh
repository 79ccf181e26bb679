// Pairs of narrow numbers in a word.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "backend/cuda/device/ptx/generation.cuh"

namespace dsv4::backend::cuda {

// Two products in bf16, subnormal numbers included.
__device__ __forceinline__ uint32_t MulBf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  if constexpr (kIsHopperOrLater) {
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  } else {
    // Plus -0, which changes no product: a zero keeps its sign.
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000U));
  }
  return product;
}

// Two products of halves.
__device__ __forceinline__ uint32_t MulF16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Two e4m3 as halves, exactly.
__device__ __forceinline__ uint32_t HalvesOfE4m3(uint16_t codes) {
  uint32_t halves;
  if constexpr (kConvertsE4m3) {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
  } else {
    // The bits of e4m3 in those of a half are the number times 2^-8, subnormal numbers and all.
    constexpr uint32_t kTwoTo8 = 0x5C005C00U;
    const uint32_t high_bytes = __byte_perm(codes, 0, 0x1404);
    const uint32_t magnitudes = (high_bytes & 0x7F007F00U) >> 1;
    halves = MulF16x2(magnitudes | (high_bytes & 0x80008000U), kTwoTo8);
    const uint32_t nans = (magnitudes + 0x00800080U) & 0x40004000U;  // All bits of a magnitude.
    halves |= nans | (nans - (nans >> 14));
  }
  return halves;
}

__device__ __forceinline__ float2 WideE4m3(uint16_t codes) {
  const uint32_t halves = HalvesOfE4m3(codes);
  return __half22float2(*reinterpret_cast<const __half2*>(&halves));
}

}  // namespace dsv4::backend::cuda
