// Rows by warps instead of blocks, with the bits of RowSum (row_steps.cuh). Lane l has columns 4 l to 4 l + 3
// of every 128. They are those of four threads of a block of 128, with their whole sums.
#pragma once

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/numeric/wide_bf16.cuh"

namespace dsv4::backend::cuda {

// Column e of the lane's four, and the same as a double, unless it is infinite or NaN (wide_bf16.cuh).
__device__ __forceinline__ float FourColumn(uint2 words, int e) {
  return FloatBf16(e < 2 ? words.x : words.y, e % 2);
}
__device__ __forceinline__ double WideFourColumn(uint2 words, int e) {
  return WideBf16(e < 2 ? words.x : words.y, e % 2) * kWideUnit;
}

// The input sums[g][e] is that of thread 4 lane + e for group g (a row, or columns of one). Lane l gets the
// WarpSum of warp l / 8 of group l / 2 % 4. Lanes go on with half of their sums, as long as they have
// several.
__device__ __forceinline__ double SumOfFourGroups(const double (&sums)[4][4], int lane) {
  const auto met = [](bool upper, double a, double b, int with) {
    return (upper ? b : a) + __shfl_xor_sync(kWholeWarp, upper ? a : b, with);
  };
  double two[2][4];
  double one[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
#pragma unroll
    for (int g = 0; g < 2; ++g)
      two[g][e] = met((lane & 4) != 0, sums[g][e], sums[g + 2][e], 4);  // Threads 16 apart.
    one[e] = met((lane & 2) != 0, two[0][e], two[1][e], 2);             // 8 apart.
  }
  const bool odd = (lane & 1) != 0;
  const double low = met(odd, one[0], one[1], 1);  // 4 apart,
  const double high = met(odd, one[2], one[3], 1);
  const double sum = low + high;                     // 2 apart,
  return sum + __shfl_xor_sync(kWholeWarp, sum, 1);  // and neighbours.
}

// Sum over the four warps of the lane's group.
__device__ __forceinline__ double SumOfFourWarps(double sum, int lane) {
  double total = __shfl_sync(kWholeWarp, sum, lane % 8);
#pragma unroll
  for (int w = 1; w < 4; ++w) total += __shfl_sync(kWholeWarp, sum, 8 * w + lane % 8);
  return total;
}

}  // namespace dsv4::backend::cuda
