// Scores of 16 keys by a warp on tensor cores, for the release's width and whole groups of 16 heads. A dot
// product's sum does not depend on which keys stand beside it, so every kernel that uses this gives the same
// bits.
#pragma once

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/packed_rows.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/ptx/cp_async.cuh"
#include "backend/cuda/kernels/gemm/gemm_mma.cuh"
#include "backend/cuda/lowering/select/indexer.h"

namespace dsv4::backend::cuda {

inline constexpr int kScoreRow =
    kScoreWidth + 8;  // Elements between rows in shared memory, so that eight lie in different banks.

// Packed keys (kReleaseKey) come to rows of kScoreRow at kPackedKeyBegin, from where they widen to the
// beginning. Two threads of a warp have a key, `half` of its columns each, and both have asked for it.
inline constexpr int kPackedKeyBegin = 192;  // In bytes.
static_assert(kPackedKeyBegin % 16 == 0 && kPackedKeyBegin + kReleaseKeyBytes <= kScoreRow * 2);
__device__ __forceinline__ void CopyPackedKey(uint16_t (&row)[kScoreRow], const void* from, int half) {
  const auto* const words = static_cast<const float*>(from);
  auto* const to = reinterpret_cast<float*>(reinterpret_cast<unsigned char*>(row) + kPackedKeyBegin);
#pragma unroll
  for (int i = 0; i < kReleaseKeyBytes / 8; ++i) CopyWordAsync(to + 2 * i + half, words + 2 * i + half);
  if (half == 0) CopyWordAsync(to + kReleaseKeyBytes / 4 - 1, words + kReleaseKeyBytes / 4 - 1);
}
__device__ __forceinline__ void WidenPackedKey(uint16_t (&row)[kScoreRow], int half) {
  auto* const bytes = reinterpret_cast<unsigned char*>(row);
  const auto* const packed = reinterpret_cast<const uint4*>(bytes + kPackedKeyBegin);
  // Every other group of 32: what a warp reads and writes at once lies in different banks.
  const uint4 codes[2] = {packed[half], packed[2 + half]};
  const uint32_t scales = *reinterpret_cast<const uint32_t*>(bytes + kPackedKeyBegin + kReleaseKeyScales);
  __syncwarp();
#pragma unroll
  for (int group = 0; group < 2; ++group) {
    const uint32_t factors = FactorsOfE8m0(scales >> (16 * group + 8 * half) & 0xFFU);
    auto* const to = reinterpret_cast<uint4*>(bytes + group * 128 + half * 64);
    const uint32_t words[4] = {codes[group].x, codes[group].y, codes[group].z, codes[group].w};
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = WidenE2m1(words[i], factors);
  }
}

// Two dot products, rounded as the contract rounds them; the first in the low half.
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// As std::max(held, 0.0): NaN stays.
__device__ __forceinline__ uint32_t Positive(uint32_t pair) {
  uint32_t positive;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(positive) : "r"(pair), "r"(0U));
  return positive;
}

// store(key, score): the scores of keys 0 to 15, of rows of kScoreRow at `keys`. `q`: [num_heads, kScoreRow],
// in shared memory too; `head_weights`: each twice, for two keys.
template <typename Store>
__device__ __forceinline__ void ScoreSixteenKeys(const uint16_t* keys, const uint16_t* q,
                                                 const uint32_t* head_weights, int num_heads, Store&& store) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = lane / 4;
  const int place = lane % 4;
  // B: two tiles of eight keys, all steps of the width.
  uint32_t b[kScoreWidth / 16][4];
#pragma unroll
  for (int step = 0; step < kScoreWidth / 16; ++step)
    LoadMatrices(b[step], keys + (lane / 16 * 8 + lane % 8) * kScoreRow + step * 16 + lane / 8 % 2 * 8);
  double sums[2][2] = {};  // By tile; keys 2 * place and the next.
  for (int head = 0; head < num_heads; head += 16) {
    float dots[2][4] = {};
#pragma unroll
    for (int step = 0; step < kScoreWidth / 16; ++step) {
      uint32_t a[4];
      LoadMatrices(a, q + (head + lane % 16) * kScoreRow + step * 16 + lane / 16 * 8);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) Mma(dots[tile], a, b[step][2 * tile], b[step][2 * tile + 1]);
    }
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // Scores of the heads; two keys at a time.
        const uint32_t held = PackBf16(dots[tile][2 * half], dots[tile][2 * half + 1]);
        const uint32_t terms = MulBf16x2(Positive(held), head_weights[head + group + half * 8]);
        sums[tile][0] += static_cast<double>(__uint_as_float(terms << 16));
        sums[tile][1] += static_cast<double>(__uint_as_float(terms & 0xFFFF0000U));
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      double sum = sums[tile][i];
      for (int offset = 16; offset >= 4; offset /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, offset);
      if (group == 0) store(tile * 8 + place * 2 + i, RoundToBf16(static_cast<float>(sum)));
    }
  }
}

}  // namespace dsv4::backend::cuda
