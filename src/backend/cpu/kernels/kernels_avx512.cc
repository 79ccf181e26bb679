// AVX-512 F, BW, DQ, VL without bf16 dot products: every format is widened to fp32 in registers.
#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/kernels/kernels.h"

namespace dsv4::backend::cpu::avx512 {
namespace {

using Vec = __m512;
using WVec = __m512;
using X = float;
constexpr int kVecs = 4;
constexpr int kLanes = 16;
constexpr int kRowsOfOne = 4;
constexpr int kPlainRows = 4;
constexpr int kFreshRows = 2;
constexpr int kPlainTokens = 4;
constexpr int kFreshTokens = 4;
constexpr int kWideTokens = 8;
constexpr bool kHoldX = true;
constexpr int kLoadedTokens = 4;

inline Vec Zero() { return _mm512_setzero_ps(); }
inline Vec Broadcast(float value) { return _mm512_set1_ps(value); }
inline Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec Dot(Vec sum, WVec w, __m512 x) { return _mm512_fmadd_ps(w, x, sum); }
inline Vec Add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline __m512 LoadFloats(const void* from) { return _mm512_loadu_ps(from); }
inline __m512 LoadX(const X* from) { return _mm512_loadu_ps(from); }
[[maybe_unused]] inline WVec LoadW(const uint8_t* from) { return _mm512_loadu_ps(from); }
[[maybe_unused]] inline void StoreW(uint8_t* to, WVec w) { _mm512_storeu_ps(to, w); }
inline __m256i Load32(const uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
inline __m512 LoadBf16s(const uint8_t* from) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(Load32(from)), 16));
}

#include "backend/cpu/kernels/fp4_avx512_body.h"

constexpr int kStepColumns = kVecs * kLanes;

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

struct Bf16 : Unscaled {
  static constexpr int64_t kBytes = 256;
  static inline void Decode(const uint8_t* bytes, int step, const Scales&, WVec* w) {
    for (int v = 0; v < kVecs; ++v) w[v] = LoadBf16s(bytes + 2 * (step * kStepColumns + v * kLanes));
  }
};

struct F16 : Unscaled {
  static constexpr int64_t kBytes = 256;
  static inline void Decode(const uint8_t* bytes, int step, const Scales&, WVec* w) {
    for (int v = 0; v < kVecs; ++v)
      w[v] = _mm512_cvtph_ps(Load32(bytes + 2 * (step * kStepColumns + v * kLanes)));
  }
};

struct Fp8 {
  static constexpr int64_t kColumns = kChunk;
  static constexpr int64_t kBytes = 128;
  static constexpr int64_t kScaleBytes = 0;
  static constexpr int kPartSteps = 2;
  static constexpr bool kScaled = true;
  static constexpr bool kLoaded = false;
  using Scales = Vec;
  static inline Scales LoadScales(const uint8_t*, const void* side, int64_t chunk) {
    return Broadcast(static_cast<const float*>(side)[chunk]);
  }
  static inline Vec PartScale(const Scales& scales, int) { return scales; }
  // e4m3 fits into f16 with its exponent 8 too low: a factor of 256. f16 knows subnormals. (The scale could
  // not carry the factor: it may be as large as fp32 allows.)
  static inline void Decode(const uint8_t* bytes, int step, const Scales&, WVec* w) {
    for (int v = 0; v < kVecs; v += 2) {
      const __m512i code = _mm512_cvtepu8_epi16(Load32(bytes + step * kStepColumns + v * kLanes));
      const __m512i magnitude = _mm512_and_si512(_mm512_slli_epi16(code, 7), _mm512_set1_epi16(0x3F80));
      const __mmask32 nan = _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x3F80));
      // magnitude | (sign & 0x8000)
      const __m512i half = _mm512_ternarylogic_epi32(magnitude, _mm512_slli_epi16(code, 8),
                                                     _mm512_set1_epi16(static_cast<int16_t>(0x8000)), 0xF8);
      const __m512i number = _mm512_mask_mov_epi16(half, nan, _mm512_set1_epi16(0x7E00));
      w[v] = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(number)), Broadcast(256.0F));
      w[v + 1] = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(number, 1)), Broadcast(256.0F));
    }
  }
};

// A step has two groups, so the scale is in the weights; codes come first, for the scale can be as large as
// fp32 allows.
struct Fp8Fine : Fp8 {
  static constexpr bool kScaled = false;
  using Scales = const float*;
  static inline Scales LoadScales(const uint8_t*, const void* side, int64_t chunk) {
    return static_cast<const float*>(side) + chunk * (kChunk / kFineColumns);
  }
  static inline Vec PartScale(const Scales&, int) { return Zero(); }
  static inline void Decode(const uint8_t* bytes, int step, const Scales& scales, WVec* w) {
    Fp8::Decode(bytes, step, Zero(), w);
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v)
      w[v] = _mm512_mul_ps(w[v], Broadcast(scales[(step * kStepColumns + v * kLanes) / kFineColumns]));
  }
};

// A permute of dwords reads their low four bits, so the shift is all the unpacking. Steps 0 and 1 hold
// elements 0 to 3 and 4 to 7 of the even dwords. Steps 2 and 3 hold those of the odd ones.
template <class Scales>
struct Fp4Dwords : Scales {
  static constexpr int kPartSteps = 4;
  static inline void Decode(const uint8_t* bytes, int step, const typename Scales::Scales&, WVec* w) {
    const __m512 values = _mm512_setr_ps(0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F, -0.0F, -0.5F, -1.0F,
                                         -1.5F, -2.0F, -3.0F, -4.0F, -6.0F);
    const __m512i packed = Fp4::Dwords(bytes, step / 2);
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      const unsigned shift = static_cast<unsigned>(4 * (step % 2 * kVecs + v));
      w[v] = _mm512_permutexvar_ps(_mm512_srli_epi32(packed, shift), values);
    }
  }
};
using NvFp4 = Fp4Dwords<NvFp4Scales>;
using MxFp4 = Fp4Dwords<MxFp4Scales>;

#include "backend/cpu/kernels/matmul_body.h"
#include "backend/cpu/kernels/row_kernels_body.h"

// RoundFp8 of groups that stay in registers: of results, which have four significant bits, bf16 is the upper
// half.
template <int64_t kGroup>
void RoundFp8Bf16Groups(const uint8_t* in, int64_t count, uint8_t* out) {
  constexpr int kVectors = kGroup / kLanes;
  const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
  const __m512i infinity = _mm512_set1_epi32(0x7F800000);
  for (int64_t begin = 0; begin < count; begin += kGroup) {
    __m512 x[kVectors];
    __m512i max = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      x[v] = LoadBf16s(in + 2 * (begin + v * kLanes));
      const __m512i bits = _mm512_and_si512(_mm512_castps_si512(x[v]), magnitude);
      max = _mm512_mask_max_epu32(max, _mm512_cmple_epu32_mask(bits, infinity), max,
                                  bits);  // NaN takes no part.
    }
    const float scale = ScaleOfFp8Group(FloatOf(_mm512_reduce_max_epu32(max)));
    const __m512 inverse = Broadcast(1.0F / scale);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      // The bound comes first: the second operand is what NaN becomes.
      const __m512 quotient = _mm512_mul_ps(x[v], inverse);
      const __m512 bounded = _mm512_min_ps(Broadcast(448.0F), _mm512_max_ps(Broadcast(-448.0F), quotient));
      const __m512i bits = _mm512_castps_si512(bounded);
      const __m512i size = _mm512_and_si512(bits, magnitude);
      const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(size, 20), _mm512_set1_epi32(1));
      const __m512i normal =
          _mm512_andnot_si512(_mm512_set1_epi32(0xFFFFF),
                              _mm512_add_epi32(_mm512_add_epi32(size, _mm512_set1_epi32(0x7FFFF)), odd));
      const __m512 fixed = Broadcast(0x1p14F);
      const __m512i subnormal =
          _mm512_castps_si512(_mm512_sub_ps(_mm512_add_ps(_mm512_castsi512_ps(size), fixed), fixed));
      const __m512i rounded = _mm512_mask_mov_epi32(
          normal, _mm512_cmplt_epu32_mask(size, _mm512_set1_epi32(0x3C800000)), subnormal);
      // rounded | sign of bits
      const __m512i with_sign = _mm512_ternarylogic_epi32(rounded, bits, magnitude, 0xF4);
      const __m512i number = _mm512_mask_mov_epi32(with_sign, _mm512_cmpgt_epu32_mask(size, infinity), bits);
      const __m512 product = _mm512_mul_ps(_mm512_castsi512_ps(number), Broadcast(scale));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 2 * (begin + v * kLanes)),
                          _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(product), 16)));
    }
  }
}

void RoundFp8Bf16(const uint8_t* in, int64_t count, int64_t group, uint8_t* out) {
  if (group == 128) return RoundFp8Bf16Groups<128>(in, count, out);
  RoundFp8Bf16Groups<32>(in, count, out);
}

struct Order {
  constexpr explicit Order(bool fp4) {
    for (int i = 0; i < kPackColumns; ++i) {
      const int step = i / kStepColumns;
      const int v = i / kLanes % kVecs;
      columns[i] = static_cast<uint8_t>(fp4 ? Fp4::Column(step / 2, i % kLanes, step % 2 * kVecs + v) : i);
    }
  }
  uint8_t columns[kPackColumns] = {};
};
constexpr Order kInOrder(false);
constexpr Order kFp4Order(true);

}  // namespace

const Kernels kKernels = {
    .floats = {.bf16_activations = false,
               .formats = {{kInOrder.columns, Multiply<F32>},
                           {kInOrder.columns, Multiply<F16>},
                           {kInOrder.columns, Multiply<Bf16>},
                           {kInOrder.columns, Multiply<Fp8>},
                           {kFp4Order.columns, Multiply<MxFp4>},
                           {kFp4Order.columns, Multiply<NvFp4>, NvFp4::kUnit},
                           {kInOrder.columns, Multiply<Fp8Fine>}}},
    .bf16 = {},
    .round_fp8 = RoundFp8,
    .round_fp8_bf16 = RoundFp8Bf16,
    .widen_bf16 = WidenBf16,
    .narrow_bf16 = NarrowBf16,
};

}  // namespace dsv4::backend::cpu::avx512
