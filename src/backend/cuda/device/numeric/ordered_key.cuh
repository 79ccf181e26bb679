// Floats as unsigned keys in their order, for selections by digits.
#pragma once

#include <cstdint>

namespace dsv4::backend::cuda {

// +0 and -0 are equal; NaN counts as the lowest number.
__device__ __forceinline__ uint32_t OrderedKey(float value) {
  const uint32_t bits = __float_as_uint(isnan(value) ? -INFINITY : value + 0.0F);  // -0 becomes +0.
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

}  // namespace dsv4::backend::cuda
