// What attention on the matrix unit does with a warpgroup's sums, which lie where the unit leaves them: a tile's weights are added up, and
// values divided.
#pragma once

#include "backend/cuda/kernels/reduce.cuh"

namespace dsv4::backend::cuda {

// Sums of eight keys' weights, keys in order, from lane to lane; the last of four has them. Element 4 j + 2 r + e of `weights` is that
// of key 8 j + 2 (lane % 4) + e and row lane / 4 + 8 r.
__device__ __forceinline__ float SumOfTile(const float (&weights)[32], int r, int place) {
  float sums[8];
#pragma unroll
  for (int group = 0; group < 8; ++group) {
    const float first = weights[group * 4 + r * 2];
    const float second = weights[group * 4 + r * 2 + 1];
    float sum = 0.0F + first + second;
#pragma unroll
    for (int from = 0; from < 3; ++from) {
      const float before = __shfl_up_sync(kWholeWarp, sum, 1);
      if (place == from + 1) sum = before + first + second;
    }
    sums[group] = sum;
  }
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

// x / divisor as fp32 has it, without the branches of a division for each of them.
struct Divisor {
  float divisor;
  float reciprocal;
  bool is_plain;
  __device__ __forceinline__ explicit Divisor(float y)
      : divisor(y), reciprocal(1.0F / y), is_plain(y >= 1.0F && y < 0x1p60F) {}
  // Twice what is left over, which is exact; the reciprocal is rounded correctly, so the quotient is.
  __device__ __forceinline__ float Plain(float x) const {
    float quotient = x * reciprocal;
    quotient = fmaf(fmaf(-quotient, divisor, x), reciprocal, quotient);
    return fmaf(fmaf(-quotient, divisor, x), reciprocal, quotient);
  }
  // A quotient of two floats is further from all halves between floats than doubles round.
  __device__ __forceinline__ float Any(float x) const {
    return static_cast<float>(static_cast<double>(x) * (1.0 / static_cast<double>(divisor)));
  }
};

// Whether a thread's numbers of row `r` are such that nothing underflows.
template <int kCount>
__device__ __forceinline__ bool ArePlain(const float (&o)[kCount], int r) {
  float smallest = INFINITY;
  float largest = 0.0F;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const float x = fabsf(o[i / 2 * 4 + r * 2 + i % 2]);
    smallest = fminf(smallest, x);
    largest = fmaxf(largest, x);
  }
  return smallest > 0x1p-60F && largest < 0x1p60F;
}

}  // namespace dsv4::backend::cuda
