// Scales of blocks of weights, where a kernel asks for them long before it needs them.
#pragma once

#include "backend/cuda/device/numeric/device_numbers.cuh"

namespace dsv4::backend::cuda {

// A scale of a block of weights, in two steps: what is stored, and the number.
__device__ __forceinline__ uint32_t LoadStoredScale(const void* scales, DType dtype, int64_t i) {
  uint32_t bits = 0;
  if (dtype == DType::kF8E8M0) {
    asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(bits) : "l"(static_cast<const uint8_t*>(scales) + i));
  } else if (dtype == DType::kBF16) {
    asm volatile("{\n.reg .u16 h;\nld.global.nc.u16 h, [%1];\ncvt.u32.u16 %0, h;\n}"
                 : "=r"(bits)
                 : "l"(static_cast<const uint16_t*>(scales) + i));
  } else {
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(bits) : "l"(static_cast<const uint32_t*>(scales) + i));
  }
  return bits;
}
__device__ __forceinline__ float ScaleFromStored(uint32_t bits, DType dtype) {
  if (dtype == DType::kF8E8M0) return FloatFromE8m0(static_cast<uint8_t>(bits));
  return __uint_as_float(dtype == DType::kBF16 ? bits << 16 : bits);
}

}  // namespace dsv4::backend::cuda
