// Eight values of a row at once: 16 or 32 aligned bytes.
#pragma once

#include "backend/cuda/device/numeric/device_numbers.cuh"

namespace dsv4::backend::cuda {

inline constexpr int kEightColumns = 8;

__device__ __forceinline__ void LoadEight(const float* data, float (&values)[8]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float4 four = *reinterpret_cast<const float4*>(data + 4 * half);
    values[4 * half] = four.x;
    values[4 * half + 1] = four.y;
    values[4 * half + 2] = four.z;
    values[4 * half + 3] = four.w;
  }
}
__device__ __forceinline__ void LoadEight(const Bf16* data, float (&values)[8]) {
  const uint4 eight = *reinterpret_cast<const uint4*>(data);
  const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(words[i] << 16);
    values[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
  }
}
__device__ __forceinline__ void StoreEight(float* data, const float (&values)[8]) {
  *reinterpret_cast<float4*>(data) = make_float4(values[0], values[1], values[2], values[3]);
  *reinterpret_cast<float4*>(data + 4) = make_float4(values[4], values[5], values[6], values[7]);
}
__device__ __forceinline__ void StoreEight(Bf16* data, const float (&values)[8]) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    words[i] = Bf16FromFloat(values[2 * i]) | static_cast<uint32_t>(Bf16FromFloat(values[2 * i + 1])) << 16;
  *reinterpret_cast<uint4*>(data) = make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace dsv4::backend::cuda
