// AVX-512 with bf16 dot products: e2m1, e4m3 and bf16 weights and the activations in front of them are exact in bf16, so
// vdpbf16ps adds exact products in fp32. (It takes bf16 subnormals, below 2^-126, for zero.)
#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/kernels/kernels.h"

namespace dsv4::backend::cpu::avx512bf16 {
namespace {

using Vec = __m512;
using WVec = __m512i;
using X = uint16_t;
constexpr int kParts = 1;
constexpr int kVecs = 4;
constexpr int kLanes = 32;
constexpr int kTileRows = 4;
constexpr int kTileTokens = 3;
constexpr int64_t kPrefetchBytes = 4096;

inline Vec Zero() { return _mm512_setzero_ps(); }
inline Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec Dot(Vec sum, WVec w, __m512i x) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
}
inline Vec Add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline float Reduce(Vec v) { return _mm512_reduce_add_ps(v); }
inline __m512i LoadX(const X* from) { return _mm512_loadu_si512(from); }
inline WVec LoadW(const uint8_t* from) { return _mm512_loadu_si512(from); }
inline Vec LoadVec(const uint8_t* from) { return _mm512_loadu_ps(from); }
inline void StoreW(uint8_t* to, WVec w) { _mm512_storeu_si512(to, w); }
inline void StoreVec(uint8_t* to, Vec v) { _mm512_storeu_ps(to, v); }

struct Bf16 {
  static constexpr int64_t kBytes = 256;
  static constexpr int64_t kScaleBytes = 0;
  static constexpr bool kScaled = false;
  struct Scales {};
  static Scales LoadScales(const uint8_t*, float) { return {}; }
  static Vec PartScale(const Scales&, int) { return Zero(); }
  static inline void Decode(const uint8_t* bytes, int, WVec* w) {
    for (int v = 0; v < kVecs; ++v) w[v] = _mm512_loadu_si512(bytes + 64 * v);
  }
};

// The bytes of the bf16 values of the non-negative e4m3 codes.
struct E4m3Tables {
  constexpr E4m3Tables() {
    for (int code = 0; code < 128; ++code) {
      const int exponent = code >> 3;
      const int mantissa = code & 7;
      int bits = ((exponent + 120) << 7) | (mantissa << 4);
      if (exponent == 0) {
        bits = 0;  // mantissa * 2^-9, normalised.
        for (int leading = 2; leading >= 0 && bits == 0; --leading) {
          if ((mantissa >> leading & 1) != 0) {
            bits = ((118 + leading) << 7) | (((mantissa << (7 - leading)) & 0x7F));
          }
        }
      }
      if (code == 127) bits = 0x7FC0;
      lower[code] = static_cast<uint8_t>(bits & 0xFF);
      upper[code] = static_cast<uint8_t>(bits >> 8);
    }
  }
  alignas(64) uint8_t lower[128] = {};
  alignas(64) uint8_t upper[128] = {};
};
constexpr E4m3Tables kE4m3Tables;

struct Fp8 {
  static constexpr int64_t kBytes = 128;
  static constexpr int64_t kScaleBytes = 0;
  static constexpr bool kScaled = true;
  using Scales = Vec;
  static inline Scales LoadScales(const uint8_t*, float chunk_scale) { return _mm512_set1_ps(chunk_scale); }
  static inline Vec PartScale(const Scales& scales, int) { return scales; }
  static inline void Decode(const uint8_t* bytes, int, WVec* w) {
    const __m512i lower0 = _mm512_load_si512(kE4m3Tables.lower);
    const __m512i lower1 = _mm512_load_si512(kE4m3Tables.lower + 64);
    const __m512i upper0 = _mm512_load_si512(kE4m3Tables.upper);
    const __m512i upper1 = _mm512_load_si512(kE4m3Tables.upper + 64);
    for (int half = 0; half < 2; ++half) {
      const __m512i codes = _mm512_loadu_si512(bytes + 64 * half);
      // The permute ignores the sign, bit 7.
      const __m512i lower = _mm512_permutex2var_epi8(lower0, codes, lower1);
      const __m512i magnitude = _mm512_permutex2var_epi8(upper0, codes, upper1);
      const __m512i upper =
          _mm512_ternarylogic_epi32(magnitude, codes, _mm512_set1_epi8(static_cast<char>(0x80)), 0xF8);
      w[2 * half] = _mm512_unpacklo_epi8(lower, upper);
      w[2 * half + 1] = _mm512_unpackhi_epi8(lower, upper);
    }
  }
};

// Words of four elements: the permute reads the low five bits of a word, a table of 16 values twice. Vector j holds element
// j of each word, so dword lane i belongs to columns 8i to 8i + 7 in all of them.
struct Fp4 {
  static constexpr int64_t kBytes = 64;
  static constexpr bool kScaled = true;
  static inline void Decode(const uint8_t* bytes, int, WVec* w) {
    const __m256i half =
        _mm256_setr_epi16(0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0, -0x8000, -0x4100,
                          -0x4080, -0x4040, -0x4000, -0x3FC0, -0x3F80, -0x3F40);
    const __m512i values = _mm512_broadcast_i64x4(half);
    const __m512i packed = _mm512_loadu_si512(bytes);
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      w[v] = _mm512_permutexvar_epi16(_mm512_srli_epi16(packed, static_cast<unsigned>(4 * v)), values);
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

enum class Interleave : uint8_t { kNone, kBytes, kNibbles };

struct Order {
  constexpr explicit Order(Interleave interleave) {
    for (int i = 0; i < kChunk; ++i) {
      const int vector = i / kLanes;
      const int word = i % kLanes;
      int column = i;
      // Unpacking bytes to words takes the low, then the high half of every 128-bit lane.
      if (interleave == Interleave::kBytes)
        column = vector / 2 * 64 + word / 8 * 16 + vector % 2 * 8 + word % 8;
      if (interleave == Interleave::kNibbles) column = word * 4 + vector;
      columns[i] = static_cast<uint8_t>(column);
    }
  }
  uint8_t columns[kChunk] = {};
};
constexpr Order kInOrder(Interleave::kNone);
constexpr Order kFp8Order(Interleave::kBytes);
constexpr Order kFp4Order(Interleave::kNibbles);

void Multiply(const MultiplyArgs& args) {
  switch (args.format) {
    case RowFormat::kF32:
    case RowFormat::kF16:
      return;  // Not in `order`: not exact in bf16.
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

const MatmulKernels kBf16Matmul = {
    .bf16_activations = true,
    .order = {nullptr, nullptr, kInOrder.columns, kFp8Order.columns, kFp4Order.columns, kFp4Order.columns},
    .multiply = Multiply,
};

}  // namespace dsv4::backend::cpu::avx512bf16
