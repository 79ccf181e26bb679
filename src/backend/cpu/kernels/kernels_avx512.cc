// AVX-512 F, BW, DQ, VL, VBMI, VNNI without bf16 dot products: every format is widened to fp32 in registers.
#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/kernels/kernels.h"

namespace dsv4::backend::cpu::avx512 {
namespace {

using Vec = __m512;
using WVec = __m512;
using X = float;
constexpr int kParts = 1;
constexpr int kVecs = 8;
constexpr int kLanes = 16;
constexpr int kFloatLanes = 16;
constexpr int kValueVectors = 4;
constexpr int kTileRows = 4;
constexpr int kTileTokens = 3;
constexpr int64_t kPrefetchBytes = 4096;

inline Vec Zero() { return _mm512_setzero_ps(); }
inline Vec Broadcast(float value) { return _mm512_set1_ps(value); }
inline Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec Dot(Vec sum, WVec w, __m512 x) { return _mm512_fmadd_ps(w, x, sum); }
inline Vec Add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline float Reduce(Vec v) { return _mm512_reduce_add_ps(v); }
inline __m512 LoadFloats(const void* from) { return _mm512_loadu_ps(from); }
inline void StoreFloats(float* to, Vec v) { _mm512_storeu_ps(to, v); }
inline __m512 LoadX(const X* from) { return _mm512_loadu_ps(from); }
inline WVec LoadW(const uint8_t* from) { return _mm512_loadu_ps(from); }
inline Vec LoadVec(const uint8_t* from) { return _mm512_loadu_ps(from); }
inline void StoreW(uint8_t* to, WVec w) { _mm512_storeu_ps(to, w); }
inline void StoreVec(uint8_t* to, Vec v) { _mm512_storeu_ps(to, v); }
inline __m256i Load32(const uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
inline __m512 LoadBf16s(const uint8_t* from) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(Load32(from)), 16));
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
  static inline void Decode(const uint8_t* bytes, int, WVec* w) {
    for (int v = 0; v < kVecs; ++v) w[v] = LoadFloats(bytes + 64 * v);
  }
};

struct Bf16 : Unscaled {
  static constexpr int64_t kBytes = 256;
  static inline void Decode(const uint8_t* bytes, int, WVec* w) {
    for (int v = 0; v < kVecs; ++v) w[v] = LoadBf16s(bytes + 32 * v);
  }
};

struct F16 : Unscaled {
  static constexpr int64_t kBytes = 256;
  static inline void Decode(const uint8_t* bytes, int, WVec* w) {
    for (int v = 0; v < kVecs; ++v) w[v] = _mm512_cvtph_ps(Load32(bytes + 32 * v));
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
  static inline void Decode(const uint8_t* bytes, int, WVec* w) {
    for (int v = 0; v < kVecs; v += 2) {
      const __m512i code = _mm512_cvtepu8_epi16(Load32(bytes + kLanes * v));
      const __m512i magnitude = _mm512_and_si512(_mm512_slli_epi16(code, 7), _mm512_set1_epi16(0x3F80));
      const __mmask32 nan = _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x3F80));
      // magnitude | (sign & 0x8000)
      const __m512i half = _mm512_ternarylogic_epi32(magnitude, _mm512_slli_epi16(code, 8),
                                                     _mm512_set1_epi16(static_cast<int16_t>(0x8000)), 0xF8);
      const __m512i number = _mm512_mask_mov_epi16(half, nan, _mm512_set1_epi16(0x7E00));
      w[v] = _mm512_cvtph_ps(_mm512_castsi512_si256(number));
      w[v + 1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(number, 1));
    }
  }
};

// 64 bytes are 16 dwords of 8 elements; vector j holds element j of each, so lane i belongs to columns 8i to 8i + 7 in all
// of them. The permute reads the low four bits of a dword, so the shift is all the unpacking there is.
struct Fp4 {
  static constexpr int64_t kBytes = 64;
  static constexpr bool kScaled = true;
  static inline void Decode(const uint8_t* bytes, int, WVec* w) {
    const __m512 values = _mm512_setr_ps(0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F, -0.0F, -0.5F, -1.0F,
                                         -1.5F, -2.0F, -3.0F, -4.0F, -6.0F);
    const __m512i packed = _mm512_loadu_si512(bytes);
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      w[v] = _mm512_permutexvar_ps(_mm512_srli_epi32(packed, static_cast<unsigned>(4 * v)), values);
    }
  }
};

struct MxFp4 : Fp4 {
  static constexpr int64_t kScaleBytes = 4;
  using Scales = Vec;
  static inline Scales LoadScales(const uint8_t* codes, float) {
    int32_t four;
    __builtin_memcpy(&four, codes, sizeof(four));
    const __m128i each = _mm_shuffle_epi8(_mm_cvtsi32_si128(four),
                                          _mm_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3));
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(each), 23);
    return _mm512_castsi512_ps(_mm512_max_epi32(bits, _mm512_set1_epi32(0x00400000)));
  }
  static inline Vec PartScale(const Scales& scales, int) { return scales; }
};

struct NvFp4 : Fp4 {
  static constexpr int64_t kScaleBytes = 8;
  using Scales = Vec;
  static inline Scales LoadScales(const uint8_t* codes, float) {
    const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(eight, eight)), 20);
    return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p120F));
  }
  static inline Vec PartScale(const Scales& scales, int) { return scales; }
};

#include "backend/cpu/kernels/matmul_body.h"
#include "backend/cpu/kernels/row_kernels_body.h"

struct Order {
  constexpr explicit Order(bool fp4) {
    for (int i = 0; i < kChunk; ++i) columns[i] = static_cast<uint8_t>(fp4 ? i % kLanes * 8 + i / kLanes : i);
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

}  // namespace dsv4::backend::cpu::avx512
