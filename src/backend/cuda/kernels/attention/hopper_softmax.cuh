// The softmax of the attentions by wgmma, on a warpgroup's sums where the unit leaves them
// (hopper_layout.cuh). It has logits and their largest, weights as the second product's operand, their sums,
// that product, and the division by all weights.
#pragma once

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/kernels/attention/hopper_layout.cuh"

namespace dsv4::backend::cuda::hopper {

// The logit of a thread's sum number k of a tile, -inf behind the last key. Key: an integer type that holds
// their number.
template <typename Key>
__device__ __forceinline__ float LogitOf(float sum, int k, Key first_key, Key num_keys, int place,
                                         float softmax_scale) {
  const Key key = first_key + k / 4 * 8 + place * 2 + k % 2;
  return key < num_keys ? sum * softmax_scale : -INFINITY;
}
// Maximum over the four lanes of each row.
__device__ __forceinline__ void ShareLargest(float (&maxima)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    for (int offset = 2; offset > 0; offset /= 2)
      maxima[r] = fmaxf(maxima[r], __shfl_xor_sync(kWholeWarp, maxima[r], offset));
  }
}

// Weights, relative to the largest logit of all tiles.
template <int kCount>
__device__ __forceinline__ void WeighLogits(const float (&logits)[kCount], const float (&maxima)[2],
                                            float (&weights)[kCount]) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) weights[k] = expf(logits[k] - maxima[k / 2 % 2]);
}
// To their tile's block, [kHeads][kKeys]: rounded, for the value product only. `first_piece`: of these keys.
template <int kCount>
__device__ __forceinline__ void StoreWeights(unsigned char* block, const float (&weights)[kCount], int row,
                                             int first_piece, int place) {
#pragma unroll
  for (int k = 0; k < kCount; k += 2) {
    const int head = row + k / 2 % 2 * 8;
    *reinterpret_cast<uint32_t*>(block + PieceOfLine(head, first_piece + k / 4) + place * 4) =
        Bf16Pair(weights[k], weights[k + 1]);
  }
}

// Begins the product of a tile's weights and kColumns columns of its keys; `weights` and `columns`: shared
// memory.
template <int kColumns>
__device__ __forceinline__ void BeginValues(float (&values)[kColumns / 2], uint32_t weights,
                                            uint32_t columns) {
  FenceRegisters(values);
  BeginMatrixSteps();
#pragma unroll
  for (int i = 0; i < kKeys / 16; ++i) {
    SharedMatrixStep<kColumns, true>::Add(values, MatrixDescriptor(weights) + 2 * i,
                                          TransposedDescriptor(columns + i * (16 * kLineBytes), kBlockBytes),
                                          i > 0 ? 1 : 0);
  }
  CommitMatrixSteps();
}
template <int kCount>
__device__ __forceinline__ void FinishValues(float (&values)[kCount]) {
  WaitForMatrixSteps<0>();
  FenceRegisters(values);
}

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

// A tile's weights added up, eight keys at a time in order, for all four lanes of a row. Element 4 j + 2 r +
// e of `weights` is that of key 8 j + 2 (lane % 4) + e and row lane / 4 + 8 r.
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

// Calls `store` with what divides a row's values by the sum of its weights: without doubt about the bits, or
// in double.
template <int kCount, typename Store>
__device__ __forceinline__ void DivideRow(const float (&o)[kCount], int r, float normalizer, Store store) {
  const Divisor divisor(normalizer);
  if (divisor.is_plain && ArePlain(o, r)) {
    store([&](float x) { return divisor.Plain(x); });
  } else {
    store([&](float x) { return divisor.Any(x); });
  }
}

}  // namespace dsv4::backend::cuda::hopper
