// The kernels of fp4_keys.h with dot products of bytes (VNNI).
#include <immintrin.h>

#include "backend/cpu/kernels/fp4_keys.h"

namespace dsv4::backend::cpu::avx512 {
namespace {

#include "backend/cpu/kernels/fp4_keys_body.h"
#include "backend/cpu/kernels/transpose_avx512_body.h"

constexpr int kLanes = 16;                  // Keys of a panel.
constexpr int kPanels = kFp4Keys / kLanes;  // A block's.
constexpr int kSteps = kFp4KeyWidth / 4;    // A step is four bytes of every lane.
constexpr int kHeads = 8;                   // A step of a query is four bytes of each.
constexpr int kStepBytes = 4 * kLanes;
constexpr int kPanelBytes = kSteps * kStepBytes;
static_assert(kPanels * (kPanelBytes + kStepBytes) <= kFp4KeyBlockBytes);
constexpr int kHeadBlockBytes = kHeads * (kFp4KeyWidth + 2 * 4);
static_assert(kHeadBlockBytes <= Fp4KeyKernels::QueryBytes(kHeads));
constexpr int kKeyOffset = kCodeOffset << kMostShift;

// One head's bytes, to every kHeads-th word.
bool PackHead(const uint8_t* row, float weight, int head, uint8_t* block) {
  int8_t bytes[kFp4KeyWidth];
  float factor;
  if (!BytesOfHead(row, weight, bytes, &factor)) return false;
  int32_t sum = 0;
  for (int i = 0; i < kFp4KeyWidth; ++i) {
    sum += bytes[i];
    block[(i / 4 * kHeads + head) * 4 + i % 4] = static_cast<uint8_t>(bytes[ColumnOfStep(i)]);
  }
  uint8_t* const rest = block + kHeads * kFp4KeyWidth + 4 * head;
  Store(rest, -kKeyOffset * sum);
  Store(rest + 4 * kHeads, factor);
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
  // By code: twice its value, and the offset.
  const __m512i table =
      _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
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
#pragma GCC unroll 4
    for (int g = 0; g < kFp4KeyWidth / kFp4KeyGroup; ++g) {
      // No byte of a word of codes with their offsets grows over eight bits, so all four are shifted at once.
      const __m512i shift =
          _mm512_and_si512(_mm512_srli_epi32(shifts, static_cast<unsigned>(8 * g)), _mm512_set1_epi32(0xFF));
      const __m512i offset = _mm512_sub_epi32(_mm512_set1_epi8(kKeyOffset),
                                              _mm512_sllv_epi32(_mm512_set1_epi8(kCodeOffset), shift));
      const auto bytes = [&](__m512i codes) __attribute__((always_inline)) {
        const __m512i values = _mm512_shuffle_epi8(table, _mm512_and_si512(codes, nibble));
        return _mm512_add_epi32(_mm512_sllv_epi32(values, shift), offset);
      };
#pragma GCC unroll 4
      for (int w = 4 * g; w < 4 * g + 4; ++w) {
        _mm512_storeu_si512(packed + 2 * w * kStepBytes, bytes(words[w]));
        _mm512_storeu_si512(packed + (2 * w + 1) * kStepBytes, bytes(_mm512_srli_epi16(words[w], 4)));
      }
    }
  }
  return true;
}

// Rounds zeros and normal numbers to the nearest of eight significant bits, ties to even. A number's power of
// two, 1.5 * 2^16 times as large, makes a sum whose last bit is the eighth.
DSV4_INLINE __m512 RoundToBf16(__m512 x) {
  const __m512 power = _mm512_and_ps(x, _mm512_castsi512_ps(_mm512_set1_epi32(0x7F800000)));
  const __m512 large = _mm512_set1_ps(0x1.8p16F);
  return _mm512_fnmadd_ps(power, large, _mm512_fmadd_ps(power, large, x));
}

// As _mm512_dpbusd_epi32 of `sum`, in its own register: g++ 12 copies it to another one and back.
DSV4_INLINE void AddProducts(__m512i& sum, __m512i key, __m512i head) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(key), "v"(head));
}

void Score(const uint8_t* query, const uint8_t* keys, int64_t num_heads, float* scores) {
  __m512d sums[kPanels][2] = {};
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
        for (int p = 0; p < kPanels; ++p) AddProducts(dots[h][p], step[p], head);
      }
    }
    // Heads in order. Their dot products are rounded as the integers that they are: powers of two do not
    // change what is rounded.
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) {
      const __m512 weight = _mm512_set1_ps(Load<float>(rest + 4 * (kHeads + h)));
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) {
        const __m512i relu = _mm512_max_epi32(dots[h][p], _mm512_setzero_si512());
        const __m512 product = RoundToBf16(_mm512_mul_ps(RoundToBf16(_mm512_cvtepi32_ps(relu)), weight));
        sums[p][0] = _mm512_add_pd(sums[p][0], _mm512_cvtps_pd(_mm512_castps512_ps256(product)));
        sums[p][1] = _mm512_add_pd(sums[p][1], _mm512_cvtps_pd(_mm512_extractf32x8_ps(product, 1)));
      }
    }
  }
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) {
    const __m512 sum = _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(sums[p][0])),
                                          _mm512_cvtpd_ps(sums[p][1]), 1);
    const __m512 power = _mm512_loadu_ps(keys + kPanels * kPanelBytes + p * kStepBytes);
    _mm512_storeu_ps(scores + p * kLanes, RoundToBf16(_mm512_mul_ps(sum, power)));
  }
}

}  // namespace

const Fp4KeyKernels kFp4KeyKernels = {.pack_query = PackQuery, .pack_keys = PackKeys, .score = Score};

}  // namespace dsv4::backend::cpu::avx512
