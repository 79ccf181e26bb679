// Sums and maxima over a warp or a block, in an order that depends on the block's size alone; every thread
// gets the result.
#pragma once

#include <cstdint>

namespace dsv4::backend::cuda {

constexpr unsigned kWholeWarp = 0xFFFFFFFFU;

template <typename T>
__device__ __forceinline__ T WarpSum(T value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kWholeWarp, value, offset);
  return value;
}
// A NaN operand leaves the maximum as it is.
__device__ __forceinline__ float WarpMax(float value) {
  for (int offset = 16; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, offset));
  return value;
}

// For whole warps, at most 1024 threads. The block must not be inside another BlockSum.
template <typename T>
__device__ T BlockSum(T value) {
  __shared__ T partial[32];
  value = WarpSum(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  T total = partial[0];
  for (unsigned w = 1; w < blockDim.x / 32; ++w) total += partial[w];
  return total;
}

}  // namespace dsv4::backend::cuda
