// AVX2, FMA and F16C: every format is widened to fp32 in registers.
#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/kernels/kernels.h"

namespace dsv4::backend::cpu::avx2 {
namespace {

using Vec = __m256;
using WVec = __m256;
using X = float;
constexpr int kParts = 4;
constexpr int kVecs = 4;
constexpr int kLanes = 8;
constexpr int kFloatLanes = 8;
constexpr int kValueVectors = 2;
constexpr int kTileRows = 2;
constexpr int kTileTokens = 3;
constexpr int64_t kPrefetchBytes = 4096;
constexpr int kPartColumns = kVecs * kLanes;

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
inline __m256 LoadFloats(const void* from) { return _mm256_loadu_ps(static_cast<const float*>(from)); }
inline void StoreFloats(float* to, Vec v) { _mm256_storeu_ps(to, v); }
inline __m256 LoadX(const X* from) { return _mm256_loadu_ps(from); }
inline WVec LoadW(const uint8_t* from) { return LoadFloats(from); }
inline Vec LoadVec(const uint8_t* from) { return LoadFloats(from); }
inline void StoreW(uint8_t* to, WVec w) { _mm256_storeu_ps(reinterpret_cast<float*>(to), w); }
inline void StoreVec(uint8_t* to, Vec v) { _mm256_storeu_ps(reinterpret_cast<float*>(to), v); }
inline __m128i Load16(const uint8_t* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
inline __m128i Load8(const uint8_t* from) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)); }
inline __m256 LoadBf16s(const uint8_t* from) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(Load16(from)), 16));
}

struct Unscaled {
  static constexpr int64_t kScaleBytes = 0;
  static constexpr bool kScaled = false;
  struct Scales {};
  static Scales LoadScales(const uint8_t*, float) { return {}; }
  static Vec PartScale(const Scales&, int) { return Zero(); }
};

struct F32 : Unscaled {
  static constexpr int64_t kBytes = 512;
  static inline void Decode(const uint8_t* bytes, int part, WVec* w) {
    for (int v = 0; v < kVecs; ++v) w[v] = LoadFloats(bytes + 4 * (part * kPartColumns + v * kLanes));
  }
};

struct Bf16 : Unscaled {
  static constexpr int64_t kBytes = 256;
  static inline void Decode(const uint8_t* bytes, int part, WVec* w) {
    for (int v = 0; v < kVecs; ++v) w[v] = LoadBf16s(bytes + 2 * (part * kPartColumns + v * kLanes));
  }
};

struct F16 : Unscaled {
  static constexpr int64_t kBytes = 256;
  static inline void Decode(const uint8_t* bytes, int part, WVec* w) {
    for (int v = 0; v < kVecs; ++v)
      w[v] = _mm256_cvtph_ps(Load16(bytes + 2 * (part * kPartColumns + v * kLanes)));
  }
};

struct Fp8 {
  static constexpr int64_t kBytes = 128;
  static constexpr int64_t kScaleBytes = 0;
  static constexpr bool kScaled = true;
  using Scales = Vec;
  static inline Scales LoadScales(const uint8_t*, float chunk_scale) {
    return Broadcast(chunk_scale * 256.0F);
  }
  static inline Vec PartScale(const Scales& scales, int) { return scales; }
  // e4m3 fits into f16 with its exponent 8 too low: a factor of 256, which the scale carries. f16 knows subnormals.
  static inline void Decode(const uint8_t* bytes, int part, WVec* w) {
    for (int v = 0; v < kVecs; ++v) {
      const __m128i code = _mm_cvtepu8_epi16(Load8(bytes + part * kPartColumns + v * kLanes));
      const __m128i magnitude = _mm_and_si128(_mm_slli_epi16(code, 7), _mm_set1_epi16(0x3F80));
      const __m128i sign =
          _mm_and_si128(_mm_slli_epi16(code, 8), _mm_set1_epi16(static_cast<int16_t>(0x8000)));
      const __m128i nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x3F80));
      const __m128i half =
          _mm_or_si128(_mm_or_si128(magnitude, sign), _mm_and_si128(nan, _mm_set1_epi16(0x7E00)));
      w[v] = _mm256_cvtph_ps(half);
    }
  }
};

// 32 bytes hold 64 elements, two parts. Byte shuffles look up the two upper bytes of the fp32 value of each nibble;
// interleaved they are 16-bit halves, which a shift or a mask turns into fp32. A part is the low or the high half of each
// 128-bit lane, so its lanes 0 to 3 and 4 to 7 belong to one block each.
struct Fp4 {
  static constexpr int64_t kBytes = 64;
  static constexpr bool kScaled = true;
  static inline void Decode(const uint8_t* bytes, int part, WVec* w) {
    const __m256i upper = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40, -128, -65, -65, -65, -64, -64, -64, -64));
    const __m256i lower = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0, -128, -64, 0, 0x40, -128, -64, 0, 0, -128, -64, 0, 0x40, -128, -64));
    const __m256i mask = _mm256_set1_epi8(0xF);
    const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + part / 2 * 32));
    const __m256i nibbles[2] = {_mm256_and_si256(packed, mask),
                                _mm256_and_si256(_mm256_srli_epi16(packed, 4), mask)};
    for (int odd = 0; odd < 2; ++odd) {
      const __m256i high = _mm256_shuffle_epi8(upper, nibbles[odd]);
      const __m256i low = _mm256_shuffle_epi8(lower, nibbles[odd]);
      const __m256i halves =
          part % 2 == 0 ? _mm256_unpacklo_epi8(low, high) : _mm256_unpackhi_epi8(low, high);
      w[2 * odd] = _mm256_castsi256_ps(_mm256_slli_epi32(halves, 16));
      w[2 * odd + 1] =
          _mm256_castsi256_ps(_mm256_and_si256(halves, _mm256_set1_epi32(static_cast<int>(0xFFFF0000U))));
    }
  }
};

struct MxFp4 : Fp4 {
  static constexpr int64_t kScaleBytes = 4;
  using Scales = __m256;  // Lanes 0 to 3: the blocks.
  static inline Scales LoadScales(const uint8_t* codes, float) {
    int32_t four;
    __builtin_memcpy(&four, codes, sizeof(four));
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_cvtsi32_si128(four)), 23);
    return _mm256_castsi256_ps(_mm256_max_epi32(bits, _mm256_set1_epi32(0x00400000)));
  }
  static inline Vec PartScale(const Scales& scales, int part) {
    const int first = part / 2 * 2;
    return _mm256_permutevar8x32_ps(
        scales, _mm256_setr_epi32(first, first, first, first, first + 1, first + 1, first + 1, first + 1));
  }
};

struct NvFp4 : Fp4 {
  static constexpr int64_t kScaleBytes = 8;
  using Scales = __m256;
  static inline Scales LoadScales(const uint8_t* codes, float) {
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(Load8(codes)), 20);
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p120F));
  }
  static inline Vec PartScale(const Scales& scales, int part) {
    const int a = part / 2 * 4 + part % 2;
    const int b = a + 2;
    return _mm256_permutevar8x32_ps(scales, _mm256_setr_epi32(a, a, a, a, b, b, b, b));
  }
};

#include "backend/cpu/kernels/matmul_body.h"
#include "backend/cpu/kernels/row_kernels_body.h"

struct Order {
  constexpr explicit Order(bool fp4) {
    for (int i = 0; i < kChunk; ++i) {
      const int part = i / kPartColumns;
      const int v = i / kLanes % kVecs;
      const int lane = i % kLanes;
      // Vectors: bytes at even places (low nibbles), odd places, then the same of the high nibbles.
      const int offset = v / 2 + v % 2 * 2;
      const int column = part / 2 * 64 + lane / 4 * 32 + part % 2 * 16 + lane % 4 * 4 + offset;
      columns[i] = static_cast<uint8_t>(fp4 ? column : i);
    }
  }
  uint8_t columns[kChunk] = {};
};
constexpr Order kInOrder(false);
constexpr Order kFp4Order(true);

void Multiply(const MultiplyArgs& args) {
  switch (args.format) {
    case RowFormat::kF32:
      return MultiplyFormat<F32>(args);
    case RowFormat::kF16:
      return MultiplyFormat<F16>(args);
    case RowFormat::kBf16:
      return MultiplyFormat<Bf16>(args);
    case RowFormat::kFp8:
      return MultiplyFormat<Fp8>(args);
    case RowFormat::kMxFp4:
      return MultiplyFormat<MxFp4>(args);
    case RowFormat::kNvFp4:
      return MultiplyFormat<NvFp4>(args);
  }
}

}  // namespace

const Kernels kKernels = {
    .floats = {.bf16_activations = false,
               .order = {kInOrder.columns, kInOrder.columns, kInOrder.columns, kInOrder.columns,
                         kFp4Order.columns, kFp4Order.columns},
               .multiply = Multiply},
    .bf16 = {},
    .round_fp8 = RoundFp8,
    .dot_rows = DotRows,
    .add_weighted_rows = AddWeightedRows,
    .widen_bf16 = WidenBf16,
    .narrow_bf16 = NarrowBf16,
};

}  // namespace dsv4::backend::cpu::avx2
