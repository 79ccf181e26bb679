// The kernels of fp4_keys.h with dot products of bytes.
#include <immintrin.h>

#include "backend/cpu/kernels/fp4_keys.h"

namespace dsv4::backend::cpu::avx512 {
namespace {

#include "backend/cpu/kernels/memory_body.h"
#include "backend/cpu/kernels/transpose_avx512_body.h"

constexpr int kLanes = 16;                     // Keys of a panel.
constexpr int kPanels = kFp4Keys / kLanes;     // Of a block.
constexpr int kSteps = kFp4KeyWidth / 4;       // A step is four bytes of every lane.
constexpr int kCodeBytes = kFp4KeyWidth / 2;   // Of a row; its scales come next.
constexpr int kHeads = Fp4KeyKernels::kHeads;  // A step of a query is four bytes of each.
constexpr int kStepBytes = 4 * kLanes;
constexpr int kPanelBytes = kSteps * kStepBytes;
constexpr int kHeadBlockBytes = kHeads * (kFp4KeyWidth + 3 * 4);
constexpr int kMostShift = 3;  // Between a key's groups.
// Keys are the unsigned operand: the largest magnitude is added to each.
constexpr int kKeyOffset = 12 << kMostShift;
// Of the powers of two of keys and queries. Nothing then leaves the normal numbers of fp32.
constexpr int kLargestExponent = 40;

// By code and, above it, the shift of its group.
struct KeyBytes {
  alignas(64) uint8_t bytes[64];
};
constexpr KeyBytes MakeKeyBytes() {
  constexpr int kTwice[8] = {0, 1, 2, 3, 4, 6, 8, 12};
  KeyBytes table = {};
  for (int i = 0; i < 64; ++i) {
    const int value = kTwice[i & 7] << (i >> 4);
    table.bytes[i] = static_cast<uint8_t>(kKeyOffset + ((i & 8) != 0 ? -value : value));
  }
  return table;
}
constexpr KeyBytes kKeyBytes = MakeKeyBytes();

// The order in which a step takes columns: the even ones of eight, which are the low nibbles of a word, then the odd ones.
DSV4_INLINE __m128i InOrderOfSteps(__m128i sixteen) {
  return _mm_shuffle_epi8(sixteen, _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
}

DSV4_INLINE __m512 LoadBf16(const uint8_t* from) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))), 16));
}

// One head's bytes, to every kHeads-th word.
bool PackHead(const uint8_t* row, float weight, int head, uint8_t* block) {
  constexpr int kVectors = kFp4KeyWidth / 16;
  __m512 values[kVectors];
  __m512 largest = _mm512_setzero_ps();
  for (int i = 0; i < kVectors; ++i) {
    values[i] = LoadBf16(row + 32 * i);
    largest = _mm512_max_ps(largest, _mm512_abs_ps(values[i]));
  }
  const float max = _mm512_reduce_max_ps(largest);
  uint32_t bits;
  __builtin_memcpy(&bits, &max, sizeof(bits));
  // The largest one is at least 64 and less than 128 of these.
  const int exponent = max == 0.0F ? 0 : static_cast<int>(bits >> 23) - 127 - 6;
  if (exponent < -kLargestExponent || exponent > kLargestExponent) return false;
  const auto power = [](int e) {
    const uint32_t power_bits = static_cast<uint32_t>(127 + e) << 23;
    float value;
    __builtin_memcpy(&value, &power_bits, sizeof(value));
    return value;
  };
  const __m512 inverse = _mm512_set1_ps(power(-exponent));
  __mmask16 exact = 0xFFFF;
  __m512i sums = _mm512_setzero_si512();
  for (int i = 0; i < kVectors; ++i) {
    const __m512 scaled = _mm512_mul_ps(values[i], inverse);
    const __m512i integers = _mm512_cvtps_epi32(scaled);
    exact &= _mm512_cmp_ps_mask(_mm512_cvtepi32_ps(integers), scaled, _CMP_EQ_OQ);
    sums = _mm512_add_epi32(sums, integers);
    alignas(16) uint8_t bytes[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(bytes), InOrderOfSteps(_mm512_cvtepi32_epi8(integers)));
    for (int s = 0; s < 4; ++s) __builtin_memcpy(block + ((4 * i + s) * kHeads + head) * 4, bytes + 4 * s, 4);
  }
  uint32_t weight_bits;
  __builtin_memcpy(&weight_bits, &weight, sizeof(weight_bits));
  if (exact != 0xFFFF || (weight_bits & 0x7F800000U) == 0x7F800000U) return false;
  uint8_t* const rest = block + kHeads * kFp4KeyWidth + 4 * head;
  Store(rest, int32_t{-kKeyOffset} * _mm512_reduce_add_epi32(sums));
  Store(rest + 4 * kHeads, power(exponent));
  Store(rest + 8 * kHeads, weight);
  return true;
}

bool PackQuery(const uint8_t* rows, const float* weights, int64_t num_heads, uint8_t* packed) {
  __builtin_memset(packed, 0, static_cast<uint64_t>(Fp4KeyKernels::QueryBytes(num_heads)));
  for (int64_t h = 0; h < num_heads; ++h) {
    if (!PackHead(rows + 2 * kFp4KeyWidth * h, weights[h], static_cast<int>(h % kHeads),
                  packed + h / kHeads * kHeadBlockBytes)) {
      return false;
    }
  }
  return true;
}

// Panels, then the power of every lane, with the half that twice the values asks for.
bool PackKeys(const uint8_t* const* rows, int64_t num_rows, uint8_t* packed) {
  const __m512i table = _mm512_load_si512(kKeyBytes.bytes);
  const __m512i nibble = _mm512_set1_epi8(0x0F);
  for (int p = 0; p < kPanels; ++p, rows += kLanes, num_rows -= kLanes, packed += kPanelBytes) {
    constexpr uint32_t kOnes = 0x7F7F7F7F;  // Scales of rows that are not there.
    alignas(64) uint32_t scale_words[kLanes];
    __m512i words[kLanes];
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) {
      const bool here = r < num_rows;
      words[r] = here ? _mm512_loadu_si512(rows[r]) : _mm512_setzero_si512();
      scale_words[r] = here ? Load<uint32_t>(rows[r] + kCodeBytes) : kOnes;
    }
    const __m512i scales = _mm512_load_si512(scale_words);
    __m512i smallest = _mm512_min_epu8(scales, _mm512_ror_epi32(scales, 8));
    smallest = _mm512_min_epu8(smallest, _mm512_ror_epi32(smallest, 16));
    const __m512i shifts = _mm512_sub_epi8(scales, smallest);
    const __mmask64 far = _mm512_cmpgt_epu8_mask(shifts, _mm512_set1_epi8(kMostShift));
    const __mmask64 large =
        _mm512_cmpgt_epu8_mask(_mm512_sub_epi8(smallest, _mm512_set1_epi8(127 - kLargestExponent)),
                               _mm512_set1_epi8(2 * kLargestExponent));
    if ((far | large) != 0) return false;
    const __m512i exponents = _mm512_and_si512(smallest, _mm512_set1_epi32(0xFF));
    _mm512_storeu_si512(packed + (kPanels - p) * kPanelBytes + p * kStepBytes,
                        _mm512_slli_epi32(_mm512_sub_epi32(exponents, _mm512_set1_epi32(1)), 23));
    Transpose(words);
    const __m512i above = _mm512_slli_epi16(shifts, 4);
#pragma GCC unroll 4
    for (int g = 0; g < kFp4KeyWidth / kFp4KeyGroup; ++g) {
      const __m512i of_lane = _mm512_setr_epi32(
          0x00000000, 0x04040404, 0x08080808, 0x0C0C0C0C, 0x00000000, 0x04040404, 0x08080808, 0x0C0C0C0C,
          0x00000000, 0x04040404, 0x08080808, 0x0C0C0C0C, 0x00000000, 0x04040404, 0x08080808, 0x0C0C0C0C);
      const __m512i shift =
          _mm512_shuffle_epi8(above, _mm512_add_epi8(of_lane, _mm512_set1_epi8(static_cast<char>(g))));
#pragma GCC unroll 4
      for (int w = 4 * g; w < 4 * g + 4; ++w) {
        constexpr int kMaskedOr = 0xEA;  // (a & b) | c
        const __m512i even = _mm512_ternarylogic_epi32(words[w], nibble, shift, kMaskedOr);
        const __m512i odd =
            _mm512_ternarylogic_epi32(_mm512_srli_epi16(words[w], 4), nibble, shift, kMaskedOr);
        _mm512_storeu_si512(packed + 2 * w * kStepBytes, _mm512_permutexvar_epi8(even, table));
        _mm512_storeu_si512(packed + (2 * w + 1) * kStepBytes, _mm512_permutexvar_epi8(odd, table));
      }
    }
  }
  return true;
}

// As fp32. No NaN comes here.
DSV4_INLINE __m512 RoundToBf16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), last);
  return _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xFFFF0000U))));
}

void Score(const uint8_t* query, const uint8_t* keys, int64_t num_heads, float* scores) {
  __m512d sums[kPanels][2] = {};
  __m512 powers[kPanels];
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) {
    powers[p] = _mm512_loadu_ps(keys + kPanels * kPanelBytes + p * kStepBytes);
    sums[p][0] = sums[p][1] = _mm512_setzero_pd();
  }
  for (int64_t first = 0; first < num_heads; first += kHeads, query += kHeadBlockBytes) {
    const uint8_t* const rest = query + kHeads * kFp4KeyWidth;
    __m512i dots[kHeads][kPanels];
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) dots[h][p] = _mm512_set1_epi32(Load<int32_t>(rest + 4 * h));
    }
    for (int s = 0; s < kSteps; ++s) {
      __m512i step[kPanels];
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) step[p] = _mm512_loadu_si512(keys + p * kPanelBytes + s * kStepBytes);
#pragma GCC unroll 8
      for (int h = 0; h < kHeads; ++h) {
        const __m512i head = _mm512_set1_epi32(Load<int32_t>(query + (s * kHeads + h) * 4));
#pragma GCC unroll 2
        for (int p = 0; p < kPanels; ++p) dots[h][p] = _mm512_dpbusd_epi32(dots[h][p], step[p], head);
      }
    }
    // Heads in order.
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) {
      const __m512 power = _mm512_set1_ps(Load<float>(rest + 4 * (kHeads + h)));
      const __m512 weight = _mm512_set1_ps(Load<float>(rest + 4 * (2 * kHeads + h)));
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) {
        const __m512 dot = _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dots[h][p]), power), powers[p]);
        const __m512 relu = _mm512_max_ps(RoundToBf16(dot), _mm512_setzero_ps());
        const __m512 product = RoundToBf16(_mm512_mul_ps(relu, weight));
        sums[p][0] = _mm512_add_pd(sums[p][0], _mm512_cvtps_pd(_mm512_castps512_ps256(product)));
        sums[p][1] = _mm512_add_pd(sums[p][1], _mm512_cvtps_pd(_mm512_extractf32x8_ps(product, 1)));
      }
    }
  }
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) {
    const __m512 sum = _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(sums[p][0])),
                                          _mm512_cvtpd_ps(sums[p][1]), 1);
    _mm512_storeu_ps(scores + p * kLanes, RoundToBf16(sum));
  }
}

}  // namespace

const Fp4KeyKernels kFp4KeyKernels = {.pack_query = PackQuery, .pack_keys = PackKeys, .score = Score};

}  // namespace dsv4::backend::cpu::avx512
