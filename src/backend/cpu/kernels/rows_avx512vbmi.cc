// A row kernel with the byte look-ups of AVX-512 VBMI.
#include <immintrin.h>

#include "backend/cpu/kernels/rows.h"

namespace dsv4::backend::cpu::avx512 {
namespace {

// Both bytes of the bf16 number that a code's magnitude is. Code 127 is NaN.
struct E4m3Bytes {
  uint8_t low[128];
  uint8_t high[128];
};
constexpr E4m3Bytes MakeE4m3Bytes() {
  E4m3Bytes bytes = {};
  for (uint32_t code = 0; code < 127; ++code) {
    uint32_t bits = code << 4;  // Exponent and mantissa; what lacks to bf16's exponent is 120.
    if (code >= 8) {
      bits += 120U << 7;
    } else if (code > 0) {
      // code * 2^-9.
      const uint32_t exponent = code < 2 ? 0 : code < 4 ? 1 : 2;
      bits = ((127 - 9 + exponent) << 7) | ((code << (7 - exponent)) & 0x7FU);
    }
    bytes.low[code] = static_cast<uint8_t>(bits & 0xFFU);
    bytes.high[code] = static_cast<uint8_t>(bits >> 8);
  }
  bytes.low[127] = 0xC0;
  bytes.high[127] = 0x7F;
  return bytes;
}
constexpr E4m3Bytes kE4m3Bytes = MakeE4m3Bytes();

}  // namespace

// Sixty-four codes at a time, whose bytes are looked up; a group's power of two is added to the exponents of what is neither 0 nor NaN.
// Other groups, and scales that might leave bf16's normal numbers, go the way of all tiers.
void WidenE4m3ByTable(const uint8_t* codes, const float* scales, int64_t num_groups, int64_t group,
                      uint8_t* out) {
  constexpr int64_t kAtOnce = 64;
  constexpr int kLargestExponent = 100;
  const __m512i low_first = _mm512_loadu_si512(kE4m3Bytes.low);
  const __m512i low_second = _mm512_loadu_si512(kE4m3Bytes.low + 64);
  const __m512i high_first = _mm512_loadu_si512(kE4m3Bytes.high);
  const __m512i high_second = _mm512_loadu_si512(kE4m3Bytes.high + 64);
  // So that bytes that are interleaved within each 16 come out in order.
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  const __m512i magnitude = _mm512_set1_epi8(0x7F);
  for (int64_t g = 0; g < num_groups; ++g) {
    uint32_t scale;
    __builtin_memcpy(&scale, scales + g, sizeof(scale));
    const int exponent = static_cast<int>(scale >> 23) - 127;  // Of a negative one it is too large.
    if (group % kAtOnce != 0 || (scale & 0x7FFFFFU) != 0 || exponent < -kLargestExponent ||
        exponent > kLargestExponent) {
      kRows.widen_e4m3(codes + g * group, scales + g, 1, group, out + 2 * g * group);
      continue;
    }
    const __m512i power = _mm512_set1_epi16(static_cast<int16_t>(exponent * 128));
    for (int64_t i = g * group; i < (g + 1) * group; i += kAtOnce) {
      const __m512i some = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(codes + i));
      const __m512i low = _mm512_permutex2var_epi8(low_first, some, low_second);
      const __mmask64 is_finite = _mm512_cmpneq_epi8_mask(_mm512_and_si512(some, magnitude), magnitude);
      const __m512i sign = _mm512_maskz_mov_epi8(is_finite, _mm512_andnot_si512(magnitude, some));
      const __m512i high = _mm512_or_si512(_mm512_permutex2var_epi8(high_first, some, high_second), sign);
      const __mmask64 numbers = _mm512_test_epi8_mask(some, magnitude) & is_finite;
      const __m512i is_number = _mm512_movm_epi8(numbers);
      const auto scaled = [&](__m512i words, __m512i which) __attribute__((always_inline)) {
        return _mm512_add_epi16(words, _mm512_and_si512(which, power));
      };
      _mm512_storeu_si512(
          out + 2 * i, scaled(_mm512_unpacklo_epi8(low, high), _mm512_unpacklo_epi8(is_number, is_number)));
      _mm512_storeu_si512(out + 2 * i + kAtOnce, scaled(_mm512_unpackhi_epi8(low, high),
                                                        _mm512_unpackhi_epi8(is_number, is_number)));
    }
  }
}

}  // namespace dsv4::backend::cpu::avx512
