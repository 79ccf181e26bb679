// The row kernels compiled for AVX-512.
#include <immintrin.h>

#include "backend/cpu/kernels/rows.h"

namespace dsv4::backend::cpu::avx512 {
namespace {

constexpr int kDotTileRows = 6;
constexpr int kDotTileTokens = 4;

#include "backend/cpu/kernels/rows_body.h"

// Thirty-two codes at a time. Groups of another size, and of scales of another kind, go the way of all tiers.
void WidenE4m3Words(const uint8_t* codes, const float* scales, int64_t num_groups, int64_t group,
                    uint8_t* out) {
  constexpr int64_t kAtOnce = 32;
  const __m512i small = _mm512_castsi128_si512(Load<__m128i>(kSmallE4m3));
  for (int64_t g = 0; g < num_groups; ++g) {
    int exponent;
    if (group % kAtOnce != 0 || !UsualPower(scales[g], &exponent)) {
      WidenE4m3(codes + g * group, scales + g, 1, group, out + 2 * g * group);
      continue;
    }
    const __m512i normal = _mm512_set1_epi16(static_cast<int16_t>((120 + exponent) * 128));
    const __m512i looked_up =
        _mm512_mask_add_epi16(small, 0xFE, small, _mm512_set1_epi16(static_cast<int16_t>(exponent * 128)));
    for (int64_t i = g * group; i < (g + 1) * group; i += kAtOnce) {
      const __m512i some =
          _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i)));
      const __m512i magnitude = _mm512_and_si512(some, _mm512_set1_epi16(0x7F));
      const __mmask32 is_small = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
      __m512i number = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), normal);
      number = _mm512_mask_permutexvar_epi16(number, is_small, magnitude, looked_up);
      constexpr int kOrMasked = 0xF8;  // a | (b & c)
      number = _mm512_ternarylogic_epi32(number, _mm512_slli_epi16(some, 8),
                                         _mm512_set1_epi16(static_cast<int16_t>(0x8000)), kOrMasked);
      const __mmask32 is_nan = _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7F));
      number = _mm512_mask_mov_epi16(number, is_nan, _mm512_set1_epi16(0x7FC0));
      _mm512_storeu_si512(out + 2 * i, number);
    }
  }
}

}  // namespace

const RowKernels kRows = [] {
  RowKernels kernels = MakeRowKernels();
  kernels.widen_e4m3 = WidenE4m3Words;
  return kernels;
}();

}  // namespace dsv4::backend::cpu::avx512
