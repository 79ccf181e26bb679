// The row kernels compiled for AVX2 and FMA.
#include <immintrin.h>

#include "backend/cpu/kernels/rows.h"

namespace dsv4::backend::cpu::avx2 {
namespace {

constexpr int kDotTileRows = 3;
constexpr int kDotTileTokens = 2;

#include "backend/cpu/kernels/rows_body.h"

// Sixteen codes at a time. Groups of another size, and of scales of another kind, go the way of all tiers.
void WidenE4m3Words(const uint8_t* codes, const float* scales, int64_t num_groups, int64_t group,
                    uint8_t* out) {
  constexpr int64_t kAtOnce = 16;
  const __m256i largest = _mm256_set1_epi16(0x7F);
  for (int64_t g = 0; g < num_groups; ++g) {
    int exponent;
    if (group % kAtOnce != 0 || !UsualPower(scales[g], &exponent)) {
      WidenE4m3(codes + g * group, scales + g, 1, group, out + 2 * g * group);
      continue;
    }
    const __m256i normal = _mm256_set1_epi16(static_cast<int16_t>((120 + exponent) * 128));
    // The lower bytes of the eight small numbers, then the upper ones.
    uint8_t bytes[16];
    for (int i = 0; i < 8; ++i) {
      const auto word = static_cast<uint16_t>(i == 0 ? 0 : kSmallE4m3[i] + exponent * 128);
      bytes[i] = static_cast<uint8_t>(word);
      bytes[8 + i] = static_cast<uint8_t>(word >> 8);
    }
    const __m256i small_bytes = _mm256_broadcastsi128_si256(Load<__m128i>(bytes));
    for (int64_t i = g * group; i < (g + 1) * group; i += kAtOnce) {
      const __m256i some = _mm256_cvtepu8_epi16(Load<__m128i>(codes + i));
      const __m256i magnitude = _mm256_and_si256(some, largest);
      const __m256i is_small = _mm256_cmpgt_epi16(_mm256_set1_epi16(8), magnitude);
      const __m256i places = _mm256_add_epi16(_mm256_or_si256(magnitude, _mm256_slli_epi16(magnitude, 8)),
                                              _mm256_set1_epi16(0x0800));
      __m256i number = _mm256_add_epi16(_mm256_slli_epi16(magnitude, 4), normal);
      number = _mm256_blendv_epi8(number, _mm256_shuffle_epi8(small_bytes, places), is_small);
      number = _mm256_or_si256(number, _mm256_and_si256(_mm256_slli_epi16(some, 8),
                                                        _mm256_set1_epi16(static_cast<int16_t>(0x8000))));
      const __m256i is_nan = _mm256_cmpeq_epi16(magnitude, largest);
      number = _mm256_blendv_epi8(number, _mm256_set1_epi16(0x7FC0), is_nan);
      Store(out + 2 * i, number);
    }
  }
}

}  // namespace

const RowKernels kRows = [] {
  RowKernels kernels = MakeRowKernels();
  kernels.widen_e4m3 = WidenE4m3Words;
  return kernels;
}();

}  // namespace dsv4::backend::cpu::avx2
