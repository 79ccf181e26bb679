// What attention on tensor cores does with a warpgroup's sums, which lie where the unit leaves them: a tile's weights are added up, and
// values divided.
#pragma once

#include "backend/cuda/device/numeric/reduce.cuh"

namespace dsv4::backend::cuda {

// Four lanes have a piece each of four things: lane `place` gets all four pieces, in order, of thing `place`.
template <typename T>
__device__ __forceinline__ void ExchangeOfFour(T (&things)[4], int place) {
  const auto exchange = [](bool keep_first, T& first, T& second, int lanes) {
    const T other = __shfl_xor_sync(kWholeWarp, keep_first ? second : first, lanes);
    (keep_first ? second : first) = other;
  };
  exchange(place % 2 == 0, things[0], things[1], 1);
  exchange(place % 2 == 0, things[2], things[3], 1);
  exchange(place / 2 == 0, things[0], things[2], 2);
  exchange(place / 2 == 0, things[1], things[3], 2);
}

// A tile's weights added up, eight keys at a time in order, for all four lanes of a row. Element 4 j + 2 r + e of `weights` is that of key
// 8 j + 2 (lane % 4) + e and row lane / 4 + 8 r.
__device__ __forceinline__ float SumOfTile(const float (&weights)[32], int r, int place) {
  float both = 0.0F;  // This lane's groups of eight, `place` and `place` + 4.
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float first[4];
    float second[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      first[i] = weights[(half * 4 + i) * 4 + r * 2];
      second[i] = weights[(half * 4 + i) * 4 + r * 2 + 1];
    }
    ExchangeOfFour(first, place);
    ExchangeOfFour(second, place);
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum = sum + first[i] + second[i];
    both = half == 0 ? sum : both + sum;
  }
  both += __shfl_xor_sync(kWholeWarp, both, 2);
  return both + __shfl_xor_sync(kWholeWarp, both, 1);
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
