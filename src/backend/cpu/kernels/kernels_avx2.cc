// AVX2, FMA and F16C: every format is widened to fp32 in registers.
#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/kernels/kernels.h"

namespace dsv4::backend::cpu::avx2 {
namespace {

using Vec = __m256;
using WVec = __m256;
using X = float;
constexpr int kVecs = 4;
constexpr int kLanes = 8;
constexpr int kRowsOfOne = 4;
constexpr int kPlainRows = 1;
constexpr int kFreshRows = 1;
constexpr int kPlainTokens = 4;
constexpr int kFreshTokens = 4;
constexpr int kWideTokens = 0;
constexpr bool kHoldX = false;
constexpr int kLoadedTokens = 4;
constexpr int kStepColumns = kVecs * kLanes;

inline Vec Zero() { return _mm256_setzero_ps(); }
inline Vec Broadcast(float value) { return _mm256_set1_ps(value); }
inline Vec Fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec Dot(Vec sum, WVec w, __m256 x) { return _mm256_fmadd_ps(w, x, sum); }
inline Vec Add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline float Reduce(Vec v) {
  const __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 quarter = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}
inline void Reduce4(const Vec* v, float* out) {
  for (int i = 0; i < 4; ++i) out[i] = Reduce(v[i]);
}
inline __m256 LoadFloats(const void* from) { return _mm256_loadu_ps(static_cast<const float*>(from)); }
inline __m256 LoadX(const X* from) { return _mm256_loadu_ps(from); }
[[maybe_unused]] inline WVec LoadW(const uint8_t* from) { return LoadFloats(from); }
[[maybe_unused]] inline void StoreW(uint8_t* to, WVec w) {
  _mm256_storeu_ps(reinterpret_cast<float*>(to), w);
}
inline __m128i Load16(const uint8_t* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
inline __m128i Load8(const uint8_t* from) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)); }
inline __m256i Load32(const uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

struct Unscaled {
  static constexpr int64_t kColumns = 128;
  static constexpr int64_t kScaleBytes = 0;
  static constexpr int kPartSteps = 2;
  static constexpr bool kScaled = false;
  static constexpr bool kLoaded = false;
  struct Scales {};
  static Scales LoadScales(const uint8_t*, const void*, int64_t) { return {}; }
  static Vec PartScale(const Scales&, int) { return Zero(); }
};

struct F32 : Unscaled {
  static constexpr int64_t kBytes = 512;
  static inline void Decode(const uint8_t* bytes, int step, const Scales&, WVec* w) {
    for (int v = 0; v < kVecs; ++v) w[v] = LoadFloats(bytes + 4 * (step * kStepColumns + v * kLanes));
  }
};

// The fp32 values of 16 bf16 numbers: those with even indices, then those with odd ones.
inline void WidenWords(__m256i words, WVec* even, WVec* odd) {
  *even = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
  *odd = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xFFFF0000U))));
}

struct Bf16 : Unscaled {
  static constexpr int64_t kBytes = 256;
  static inline void Decode(const uint8_t* bytes, int step, const Scales&, WVec* w) {
    for (int v = 0; v < kVecs; v += 2)
      WidenWords(Load32(bytes + 2 * (step * kStepColumns + v * kLanes)), w + v, w + v + 1);
  }
};

struct F16 : Unscaled {
  static constexpr int64_t kBytes = 256;
  static inline void Decode(const uint8_t* bytes, int step, const Scales&, WVec* w) {
    for (int v = 0; v < kVecs; ++v)
      w[v] = _mm256_cvtph_ps(Load16(bytes + 2 * (step * kStepColumns + v * kLanes)));
  }
};

struct Fp8 {
  static constexpr int64_t kColumns = kChunk;
  static constexpr int64_t kBytes = 128;
  static constexpr int64_t kScaleBytes = 0;
  static constexpr int kPartSteps = 4;
  static constexpr bool kScaled = true;
  static constexpr bool kLoaded = false;
  using Scales = Vec;
  static inline Scales LoadScales(const uint8_t*, const void* side, int64_t chunk) {
    return Broadcast(static_cast<const float*>(side)[chunk]);
  }
  static inline Vec PartScale(const Scales& scales, int) { return scales; }
  // Sign, exponent and mantissa, in the bit positions of a bf16 word, are 2^-120 times the code's number,
  // subnormal or not. The multiplication, which is exact, scales it up.
  static inline void Decode(const uint8_t* bytes, int step, const Scales&, WVec* w) {
    const __m256i codes = Load32(bytes + step * kStepColumns);
    const __m256i field = _mm256_set1_epi16(static_cast<int16_t>(0x87F0));
    const __m256i zero = _mm256_setzero_si256();
    const Vec up = Broadcast(0x1p120F);
    for (int half = 0; half < 2; ++half) {
      const __m256i words = half == 0 ? _mm256_unpacklo_epi8(zero, codes) : _mm256_unpackhi_epi8(zero, codes);
      WidenWords(_mm256_and_si256(_mm256_srai_epi16(words, 4), field), w + 2 * half, w + 2 * half + 1);
    }
    for (int v = 0; v < kVecs; ++v) w[v] = _mm256_mul_ps(w[v], up);
    const __m256i nan = _mm256_cmpeq_epi8(_mm256_or_si256(codes, _mm256_set1_epi8(static_cast<char>(0x80))),
                                          _mm256_set1_epi8(static_cast<char>(0xFF)));
    if (__builtin_expect(_mm256_testz_si256(nan, nan), 1)) return;
    for (int half = 0; half < 2; ++half) {
      Vec even;
      Vec odd;
      WidenWords(half == 0 ? _mm256_unpacklo_epi8(nan, nan) : _mm256_unpackhi_epi8(nan, nan), &even, &odd);
      w[2 * half] = _mm256_or_ps(w[2 * half], even);
      w[2 * half + 1] = _mm256_or_ps(w[2 * half + 1], odd);
    }
  }
};

struct Fp8Fine : Fp8 {
  static constexpr int kPartSteps = 1;
  static_assert(kStepColumns == kFineColumns);
  using Scales = const float*;
  static inline Scales LoadScales(const uint8_t*, const void* side, int64_t chunk) {
    return static_cast<const float*>(side) + chunk * (kChunk / kFineColumns);
  }
  static inline Vec PartScale(const Scales& scales, int part) { return Broadcast(scales[part]); }
  static inline void Decode(const uint8_t* bytes, int step, const Scales&, WVec* w) {
    Fp8::Decode(bytes, step, Zero(), w);
  }
};

// 32 bytes hold 64 elements, a part. The two middle dwords of each 128-bit lane are exchanged. Both halves of
// a lane then begin with the first four bytes of a block of 16 columns. Byte shuffles look up the bytes of
// the bf16 value of each nibble; interleaved they are words of it. Step u holds the u-th four bytes of the
// blocks. Lanes 0 and 1 of a 128-bit lane belong to its first block, 2 and 3 to its second.
struct Fp4 {
  static constexpr int64_t kColumns = 128;
  static constexpr int64_t kBytes = 64;
  static constexpr int kPartSteps = 2;
  static constexpr bool kScaled = true;
  static constexpr bool kLoaded = false;
  static constexpr int kRowsOfOne = 1;  // More need more than 16 registers.
  struct Scales {
    __m256 parts[2];
  };
  static inline Vec PartScale(const Scales& scales, int part) { return scales.parts[part]; }
  static inline void Decode(const uint8_t* bytes, int step, const Scales&, WVec* w) {
    constexpr char kHalf = 0x3F;  // 0.5, 1, 1.5
    constexpr char kTwo = 0x40;   // 2, 3, 4, 6
    constexpr char kSign = -128;
    const __m256i upper = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, kHalf, kHalf, kHalf, kTwo, kTwo, kTwo, kTwo, kSign, kSign | kHalf, kSign | kHalf,
                      kSign | kHalf, kSign | kTwo, kSign | kTwo, kSign | kTwo, kSign | kTwo));
    const __m256i lower = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0, -128, -64, 0, 0x40, -128, -64, 0, 0, -128, -64, 0, 0x40, -128, -64));
    const __m256i mask = _mm256_set1_epi8(0xF);
    const __m256i packed = _mm256_shuffle_epi32(Load32(bytes + step / 2 * 32), 0xD8);
    const __m256i nibbles[2] = {_mm256_and_si256(packed, mask),
                                _mm256_and_si256(_mm256_srli_epi16(packed, 4), mask)};
    for (int odd = 0; odd < 2; ++odd) {
      const __m256i high = _mm256_shuffle_epi8(upper, nibbles[odd]);
      const __m256i low = _mm256_shuffle_epi8(lower, nibbles[odd]);
      WidenWords(step % 2 == 0 ? _mm256_unpacklo_epi8(low, high) : _mm256_unpackhi_epi8(low, high),
                 w + 2 * odd, w + 2 * odd + 1);
    }
  }
  static constexpr int Column(int step, int v, int lane) {
    return step / 2 * 64 + lane / 4 * 32 + lane / 2 % 2 * 16 + step % 2 * 8 + lane % 2 * 4 + v % 2 * 2 +
           v / 2;
  }
};

struct MxFp4 : Fp4 {
  static constexpr int64_t kScaleBytes = 4;
  static inline Scales LoadScales(const uint8_t* codes, const void*, int64_t) {
    int32_t four;
    __builtin_memcpy(&four, codes, sizeof(four));
    const __m128i each = _mm_shuffle_epi8(_mm_cvtsi32_si128(four),
                                          _mm_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3));
    return {{Exponents(each), Exponents(_mm_srli_si128(each, 8))}};
  }
  static inline Vec Exponents(__m128i eight) {
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(eight), 23);
    return _mm256_castsi256_ps(_mm256_max_epi32(bits, _mm256_set1_epi32(0x00400000)));
  }
};

// The format e4m3 fits into f16 with its exponent 8 too low, and f16 knows subnormals. In fp32 none comes up:
// a subnormal costs some cores a hundred cycles.
struct NvFp4 : Fp4 {
  static constexpr float kUnit = 0x1p8F;
  static constexpr int64_t kScaleBytes = 8;
  static inline Scales LoadScales(const uint8_t* codes, const void*, int64_t) {
    // The upper bytes of words.
    const __m128i in_halves =
        _mm_shuffle_epi8(Load8(codes), _mm_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 2, -1, 3, -1, 6, -1, 7));
    const __m256 each = _mm256_cvtph_ps(_mm_srli_epi16(in_halves, 1));
    return {{_mm256_unpacklo_ps(each, each), _mm256_unpackhi_ps(each, each)}};
  }
};

#include "backend/cpu/kernels/matmul_body.h"
#include "backend/cpu/kernels/row_kernels_body.h"

enum class Interleave : uint8_t { kNone, kWords, kBytes, kNibbles };

struct Order {
  constexpr explicit Order(Interleave interleave) {
    for (int i = 0; i < kPackColumns; ++i) {
      const int first = i / kStepColumns * kStepColumns;
      const int v = i / kLanes % kVecs;
      const int lane = i % kLanes;
      int column = i;
      // Even words, then odd ones.
      if (interleave == Interleave::kWords) column = first + v / 2 * 16 + lane * 2 + v % 2;
      // Words of the low, then the high half of every 128-bit lane.
      if (interleave == Interleave::kBytes) column = first + lane / 4 * 16 + v / 2 * 8 + lane % 4 * 2 + v % 2;
      if (interleave == Interleave::kNibbles)
        column = i / 128 * 128 + Fp4::Column(first % 128 / kStepColumns, v, lane);
      columns[i] = static_cast<uint8_t>(column);
    }
  }
  uint8_t columns[kPackColumns] = {};
};
constexpr Order kInOrder(Interleave::kNone);
constexpr Order kBf16Order(Interleave::kWords);
constexpr Order kFp8Order(Interleave::kBytes);
constexpr Order kFp4Order(Interleave::kNibbles);

}  // namespace

const Kernels kKernels = {
    .floats = {.bf16_activations = false,
               .formats = {{kInOrder.columns, Multiply<F32>},
                           {kInOrder.columns, Multiply<F16>},
                           {kBf16Order.columns, Multiply<Bf16>},
                           {kFp8Order.columns, Multiply<Fp8>},
                           {kFp4Order.columns, Multiply<MxFp4>},
                           {kFp4Order.columns, Multiply<NvFp4>, NvFp4::kUnit},
                           {kFp8Order.columns, Multiply<Fp8Fine>}}},
    .bf16 = {},
    .round_fp8 = RoundFp8,
    .widen_bf16 = WidenBf16,
    .narrow_bf16 = NarrowBf16,
};

}  // namespace dsv4::backend::cpu::avx2
