// How a tile's dot products become scores, for kernels that multiply by wgmma. Keys are rows of the result
// and heads its columns. So a head's term is made in the register where its dot product lies, two heads at a
// time. Terms, pairs in bf16, then lie as an A operand of tensor cores, which sum them in fp32. The sums are
// the score, and, by the signs of the weights, the sum of magnitudes beside it. That tells how far off the
// score may be. Where its rounding is in doubt, the terms, which are still there, are added in double in the
// order of ScoreSixteenKeys (indexer_keys.cuh).
#pragma once

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/kernels/gemm/gemm_mma.cuh"

namespace dsv4::backend::cuda {

inline constexpr int kTermHeads = 64;

// Two dot products, rounded as the contract rounds them, and 0 where that is negative; NaN stays.
__device__ __forceinline__ uint32_t PositivePair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// The bound on how far `sum` is off, for terms of these magnitudes. Tensor cores add 16 terms, their products
// by 1 or -1, as integers and cut off lower bits. The integers' unit is 2^-23 of the largest or less. That
// loses 2^-23 of the magnitudes for each of 16 and for the result, and two more even if eight are added at a
// time. Four such sums are added in fp32: 2^-23 in all. 20 * 2^-23 is less than:
inline constexpr float kDoubt = 0x1p-18F;
// Sums of smaller magnitudes are in doubt (terms that are subnormal may count as 0), and those that are no
// finite number.
inline constexpr float kSmall = 0x1p-90F;
inline constexpr float kLarge = 0x1p120F;

// Whether the sum in double of the terms rounds to `score` without doubt; `sum` is their sum in fp32.
// Rounding keeps the order of numbers, to fp32 and then to bf16 too. The sum in double, itself off by less
// than 2^-46, lies between both ends.
__device__ __forceinline__ bool RoundsClearly(float sum, float magnitudes, float& score) {
  const uint32_t ends = Bf16Pair(fmaf(magnitudes, -kDoubt, sum), fmaf(magnitudes, kDoubt, sum));
  score = __uint_as_float(ends & 0xFFFF0000U);
  return magnitudes > kSmall && magnitudes < kLarge && ends >> 16 == (ends & 0xFFFFU);
}

// The score of a key whose terms four lanes have, [j]: of heads 8 j + 2 place and the next. As
// ScoreSixteenKeys adds them: those of heads that differ by 8 in order, then sums whose heads differ by 4, by
// 2 and by 1.
__device__ __forceinline__ float ScoreInDouble(const uint32_t (&terms)[kTermHeads / 8]) {
  double even = 0.0;
  double odd = 0.0;
#pragma unroll
  for (int j = 0; j < kTermHeads / 8; ++j) {
    even += static_cast<double>(__uint_as_float(terms[j] << 16));
    odd += static_cast<double>(__uint_as_float(terms[j] & 0xFFFF0000U));
  }
#pragma unroll
  for (int offset = 2; offset > 0; offset /= 2) {
    even += __shfl_xor_sync(kWholeWarp, even, offset);
    odd += __shfl_xor_sync(kWholeWarp, odd, offset);
  }
  return RoundToBf16(static_cast<float>(even + odd));
}

// B of the terms' product: its first column adds up, its second by the weights' signs.
__device__ __forceinline__ uint32_t SignMaskOfLane(int lane) { return lane / 4 == 1 ? 0x80008000U : 0U; }

// The scores of a lane's two keys of a warp's 16: lane / 4 and eight further. `dots` are of matrix steps.
// `weights`, [j], are of heads 8 j + 2 (lane % 4) and the next. Function wanted(r) tells whether this lane,
// the first of four that have a key's terms, wants the score; store(r, score) takes it.
template <typename Wanted, typename Store>
__device__ __forceinline__ void ScoresOfDots(const float (&dots)[kTermHeads / 2],
                                             const uint32_t (&weights)[kTermHeads / 8], uint32_t sign_mask,
                                             Wanted&& wanted, Store&& store) {
  uint32_t terms[2][kTermHeads / 8];  // Terms of both keys.
#pragma unroll
  for (int j = 0; j < kTermHeads / 8; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      terms[r][j] = MulBf16x2(PositivePair(dots[4 * j + 2 * r], dots[4 * j + 2 * r + 1]), weights[j]);
  }
  float sums[kTermHeads / 16][4] = {};
#pragma unroll
  for (int i = 0; i < kTermHeads / 16; ++i) {
    const uint32_t sixteen[4] = {terms[0][2 * i], terms[1][2 * i], terms[0][2 * i + 1], terms[1][2 * i + 1]};
    constexpr uint32_t kOnes = 0x3F803F80U;
    Mma(sums[i], sixteen, (weights[2 * i] & sign_mask) | kOnes, (weights[2 * i + 1] & sign_mask) | kOnes);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // The sums lie in the first of four lanes.
    const bool is_wanted = wanted(r);
    float score;
    const bool clear = RoundsClearly(
        (sums[0][2 * r] + sums[1][2 * r]) + (sums[2][2 * r] + sums[3][2 * r]),
        (sums[0][2 * r + 1] + sums[1][2 * r + 1]) + (sums[2][2 * r + 1] + sums[3][2 * r + 1]), score);
    if (__any_sync(kWholeWarp, is_wanted && !clear)) score = ScoreInDouble(terms[r]);
    if (is_wanted) store(r, score);
  }
}

}  // namespace dsv4::backend::cuda
