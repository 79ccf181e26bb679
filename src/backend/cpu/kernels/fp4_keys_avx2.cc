// The kernels of fp4_keys.h with AVX2, whose products of bytes are summed in 16 bits. Twice the values of
// codes, up to 12, are multiplied as such; the sums of sixteen columns are then shifted as their group asks.
#include <immintrin.h>

#include "backend/cpu/kernels/fp4_keys.h"

namespace dsv4::backend::cpu::avx2 {
namespace {

#include "backend/cpu/kernels/fp4_keys_body.h"

constexpr int kLanes = 8;                   // Keys of a panel.
constexpr int kPanels = kFp4Keys / kLanes;  // A block's.
constexpr int kSteps = kFp4KeyWidth / 4;    // A step is four bytes of every lane.
constexpr int kHalfGroups = kFp4KeyWidth / 16;
constexpr int kStepsOfHalf = kSteps / kHalfGroups;
constexpr int kGroups = kFp4KeyWidth / kFp4KeyGroup;
constexpr int kStepBytes = 4 * kLanes;
// A panel's steps, and for each group the shift as a factor of both sums of a lane, and the lanes' powers.
constexpr int kFactorsAt = kSteps * kStepBytes;
constexpr int kPowersAt = kFactorsAt + kGroups * kStepBytes;
constexpr int kPanelBytes = kPowersAt + kStepBytes;
static_assert(kPanels * kPanelBytes <= kFp4KeyBlockBytes);
// A head's bytes, what the keys' offset adds to the sums of sixteen columns, and its factor.
constexpr int kOffsetsAt = kFp4KeyWidth;
constexpr int kFactorAt = kOffsetsAt + 4 * kHalfGroups;
constexpr int kHeadBytes = kFactorAt + 4;
static_assert(kHeadBytes <= Fp4KeyKernels::QueryBytes(1));

DSV4_INLINE __m256i LoadBytes(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
DSV4_INLINE void StoreBytes(void* to, __m256i bytes) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), bytes);
}

bool PackQuery(const uint8_t* rows, const float* weights, int64_t num_heads, uint8_t* packed) {
  for (int64_t h = 0; h < num_heads; ++h, packed += kHeadBytes) {
    int8_t columns[kFp4KeyWidth];
    float factor;
    if (!BytesOfHead(rows + 2 * kFp4KeyWidth * h, weights[h], columns, &factor)) return false;
    for (int half = 0; half < kHalfGroups; ++half) {
      int sum = 0;
      for (int i = 0; i < 16; ++i) sum += columns[16 * half + i];
      // Goes into one of a lane's two sums, which are added in the end. Neither sum can then need more than
      // 16 bits.
      Store(packed + kOffsetsAt + 4 * half, int32_t{static_cast<uint16_t>(-kCodeOffset * sum)});
    }
    for (int i = 0; i < kFp4KeyWidth; ++i) packed[i] = static_cast<uint8_t>(columns[ColumnOfStep(i)]);
    Store(packed + kFactorAt, factor);
  }
  return true;
}

// Words of 8 x 8, rows and columns exchanged.
DSV4_INLINE void Transpose(__m256i (&rows)[8]) {
  __m256i pairs[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  __m256i quads[8];
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    quads[i] = _mm256_unpacklo_epi64(pairs[i], pairs[i + 2]);
    quads[i + 1] = _mm256_unpackhi_epi64(pairs[i], pairs[i + 2]);
    quads[i + 2] = _mm256_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    quads[i + 3] = _mm256_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    rows[c] = _mm256_permute2x128_si256(quads[c], quads[4 + c], 0x20);
    rows[4 + c] = _mm256_permute2x128_si256(quads[c], quads[4 + c], 0x31);
  }
}

bool PackKeys(const uint8_t* const* rows, int64_t num_rows, uint8_t* packed) {
  const __m256i table =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const __m256i nibble = _mm256_set1_epi8(0x0F);
  static const uint8_t no_codes[kCodeBytes] = {};
  for (int p = 0; p < kPanels; ++p, rows += kLanes, num_rows -= kLanes, packed += kPanelBytes) {
    const uint8_t* from[kLanes];
    for (int r = 0; r < kLanes; ++r) {
      const bool here = r < num_rows;
      from[r] = here ? rows[r] : no_codes;
      uint8_t scales[kGroups] = {127, 127, 127, 127};
      if (here) __builtin_memcpy(scales, rows[r] + kCodeBytes, kGroups);
      int smallest = scales[0];
      int largest = scales[0];
      for (int g = 1; g < kGroups; ++g) {
        smallest = scales[g] < smallest ? scales[g] : smallest;
        largest = scales[g] > largest ? scales[g] : largest;
      }
      if (largest - smallest > kMostShift || !UsualExponent(smallest - 127)) return false;
      for (int g = 0; g < kGroups; ++g)
        Store(packed + kFactorsAt + g * kStepBytes + 4 * r, uint32_t{0x00010001} << (scales[g] - smallest));
      // With the half that twice the values asks for.
      Store(packed + kPowersAt + 4 * r, PowerOfTwo(smallest - 127 - 1));
    }
    for (int half = 0; half < 2; ++half) {
      __m256i words[kLanes];
#pragma GCC unroll 8
      for (int r = 0; r < kLanes; ++r) words[r] = LoadBytes(from[r] + half * (kCodeBytes / 2));
      Transpose(words);
      uint8_t* const to = packed + half * (kSteps / 2) * kStepBytes;
#pragma GCC unroll 8
      for (int w = 0; w < kLanes; ++w) {
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(words[w], 4), nibble);
        StoreBytes(to + 2 * w * kStepBytes, _mm256_shuffle_epi8(table, _mm256_and_si256(words[w], nibble)));
        StoreBytes(to + (2 * w + 1) * kStepBytes, _mm256_shuffle_epi8(table, odd));
      }
    }
  }
  return true;
}

// dots[p][lane] of two heads and two panels.
DSV4_INLINE void Dots(const uint8_t* const (&heads)[2], const uint8_t* keys, int32_t* const (&dots)[2]) {
  __m256i sums[2][2] = {};
  for (int half = 0; half < kHalfGroups; ++half) {
    __m256i words[2][2];
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h)
      words[h][0] = words[h][1] = _mm256_set1_epi32(Load<int32_t>(heads[h] + kOffsetsAt + 4 * half));
#pragma GCC unroll 4
    for (int s = 0; s < kStepsOfHalf; ++s) {
      const int at = half * kStepsOfHalf + s;
      const __m256i first = LoadBytes(keys + at * kStepBytes);
      const __m256i second = LoadBytes(keys + kPanelBytes + at * kStepBytes);
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const __m256i head = _mm256_set1_epi32(Load<int32_t>(heads[h] + 4 * at));
        words[h][0] = _mm256_add_epi16(words[h][0], _mm256_maddubs_epi16(first, head));
        words[h][1] = _mm256_add_epi16(words[h][1], _mm256_maddubs_epi16(second, head));
      }
    }
#pragma GCC unroll 2
    for (int p = 0; p < 2; ++p) {
      const __m256i factors = LoadBytes(keys + p * kPanelBytes + kFactorsAt + half / 2 * kStepBytes);
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h)
        sums[h][p] = _mm256_add_epi32(sums[h][p], _mm256_madd_epi16(words[h][p], factors));
    }
  }
  for (int h = 0; h < 2; ++h) {
    StoreBytes(dots[h], sums[h][0]);
    StoreBytes(dots[h] + kLanes, sums[h][1]);
  }
}

// As in the unit of AVX-512.
DSV4_INLINE __m256 RoundToBf16(__m256 x) {
  const __m256 power = _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7F800000)));
  const __m256 large = _mm256_set1_ps(0x1.8p16F);
  return _mm256_fnmadd_ps(power, large, _mm256_fmadd_ps(power, large, x));
}

void Score(const uint8_t* query, const uint8_t* keys, int64_t num_heads, float* scores) {
  constexpr int kHeads = 8;  // At a time.
  __m256d sums[kPanels][2];
  for (auto& of_panel : sums) of_panel[0] = of_panel[1] = _mm256_setzero_pd();
  for (int64_t first = 0; first < num_heads; first += kHeads) {
    const int count = num_heads - first < kHeads ? static_cast<int>(num_heads - first) : kHeads;
    alignas(32) int32_t dots[kHeads][kFp4Keys];
    for (int p = 0; p < kPanels; p += 2) {
      for (int h = 0; h < count; h += 2) {
        const uint8_t* const head = query + (first + h) * kHeadBytes;
        const int second = h + 1 < count ? 1 : 0;  // Else the first one again.
        Dots({head, head + second * kHeadBytes}, keys + p * kPanelBytes,
             {dots[h] + p * kLanes, dots[h + second] + p * kLanes});
      }
    }
    // Heads in order.
    for (int p = 0; p < kPanels; ++p) {
      for (int h = 0; h < count; ++h) {
        const __m256 factor = _mm256_set1_ps(Load<float>(query + (first + h) * kHeadBytes + kFactorAt));
        const __m256i relu = _mm256_max_epi32(LoadBytes(dots[h] + p * kLanes), _mm256_setzero_si256());
        const __m256 product = RoundToBf16(_mm256_mul_ps(RoundToBf16(_mm256_cvtepi32_ps(relu)), factor));
        sums[p][0] = _mm256_add_pd(sums[p][0], _mm256_cvtps_pd(_mm256_castps256_ps128(product)));
        sums[p][1] = _mm256_add_pd(sums[p][1], _mm256_cvtps_pd(_mm256_extractf128_ps(product, 1)));
      }
    }
  }
  for (int p = 0; p < kPanels; ++p) {
    const __m256 sum = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(sums[p][0])),
                                            _mm256_cvtpd_ps(sums[p][1]), 1);
    const __m256 power = Load<__m256>(keys + p * kPanelBytes + kPowersAt);
    Store(scores + p * kLanes, RoundToBf16(_mm256_mul_ps(sum, power)));
  }
}

}  // namespace

const Fp4KeyKernels kFp4KeyKernels = {.pack_query = PackQuery, .pack_keys = PackKeys, .score = Score};

}  // namespace dsv4::backend::cpu::avx2
