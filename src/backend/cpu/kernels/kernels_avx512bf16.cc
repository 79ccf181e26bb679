// AVX-512 with bf16 dot products. Weights in e2m1, e4m3 and bf16 and the activations in front of them are
// exact in bf16. So vdpbf16ps adds exact products in fp32. (It takes bf16 subnormals, below 2^-126, for
// zero.)
#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/kernels/kernels.h"

namespace dsv4::backend::cpu::avx512bf16 {
namespace {

using Vec = __m512;
using WVec = __m512i;
using X = uint16_t;
constexpr int kVecs = 4;
constexpr int kLanes = 32;
constexpr int kRowsOfOne = 2;
constexpr int kPlainRows = 4;
constexpr int kFreshRows = 2;
constexpr int kPlainTokens = 4;
constexpr int kFreshTokens = 4;
constexpr int kWideTokens = 0;
constexpr bool kHoldX = false;
constexpr int kLoadedTokens = 6;

inline Vec Zero() { return _mm512_setzero_ps(); }
inline Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec Dot(Vec sum, WVec w, __m512i x) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
}
inline Vec Add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline __m512i LoadX(const X* from) { return _mm512_loadu_si512(from); }
[[maybe_unused]] inline WVec LoadW(const uint8_t* from) { return _mm512_loadu_si512(from); }
[[maybe_unused]] inline void StoreW(uint8_t* to, WVec w) { _mm512_storeu_si512(to, w); }

#include "backend/cpu/kernels/e4m3_bf16_body.h"
#include "backend/cpu/kernels/fp4_avx512_body.h"

struct Bf16 {
  static constexpr int64_t kColumns = 128;
  static constexpr int64_t kBytes = 256;
  static constexpr int64_t kScaleBytes = 0;
  static constexpr int kPartSteps = 1;
  static constexpr int kRowsOfOne = 4;  // Nothing but dot products: two chains of them are too few.
  static constexpr bool kScaled = false;
  static constexpr bool kLoaded = true;
  struct Scales {};
  static Scales LoadScales(const uint8_t*, const void*, int64_t) { return {}; }
  static Vec PartScale(const Scales&, int) { return Zero(); }
};

// 128 codes to four vectors.
inline void DecodeE4m3(const uint8_t* bytes, const uint8_t* tables, WVec* w) {
  const __m512i lower0 = _mm512_load_si512(tables);
  const __m512i lower1 = _mm512_load_si512(tables + 64);
  const __m512i upper0 = _mm512_load_si512(tables + 128);
  const __m512i upper1 = _mm512_load_si512(tables + 192);
  for (int half = 0; half < 2; ++half) {
    __m512i codes = _mm512_loadu_si512(bytes + 64 * half);
    asm("" : "+v"(codes));  // One load, not one for each use.
    // The permute ignores the sign, bit 7.
    const __m512i lower = _mm512_permutex2var_epi8(lower0, codes, lower1);
    const __m512i magnitude = _mm512_permutex2var_epi8(upper0, codes, upper1);
    const __m512i upper =
        _mm512_ternarylogic_epi32(magnitude, codes, _mm512_set1_epi8(static_cast<char>(0x80)), 0xF8);
    w[2 * half] = _mm512_unpacklo_epi8(lower, upper);
    w[2 * half + 1] = _mm512_unpackhi_epi8(lower, upper);
  }
}

// Any scales: `side` is one float a chunk.
struct Fp8 {
  static constexpr int64_t kColumns = kChunk;
  static constexpr int64_t kBytes = 128;
  static constexpr int64_t kScaleBytes = 0;
  static constexpr int kPartSteps = 1;
  static constexpr bool kScaled = true;
  static constexpr bool kLoaded = false;
  using Scales = Vec;
  static inline Scales LoadScales(const uint8_t*, const void* side, int64_t chunk) {
    return _mm512_set1_ps(static_cast<const float*>(side)[chunk]);
  }
  static inline Vec PartScale(const Scales& scales, int) { return scales; }
  static inline void Decode(const uint8_t* bytes, int, const Scales&, WVec* w) {
    DecodeE4m3(bytes, kE4m3Tables.bytes, w);
  }
};

// Powers of two: they only add to the exponents, so the look-up tables can carry them. `side`: 256 bytes of
// tables a chunk.
struct Fp8Folded {
  static constexpr int64_t kColumns = kChunk;
  static constexpr int64_t kBytes = 128;
  static constexpr int64_t kScaleBytes = 0;
  static constexpr int kPartSteps = 1;
  static constexpr bool kScaled = false;
  static constexpr bool kLoaded = false;
  using Scales = const uint8_t*;
  static inline Scales LoadScales(const uint8_t*, const void* side, int64_t chunk) {
    return static_cast<const uint8_t*>(side) + 256 * chunk;
  }
  static inline Vec PartScale(const Scales&, int) { return Zero(); }
  static inline void Decode(const uint8_t* bytes, int, const Scales& tables, WVec* w) {
    DecodeE4m3(bytes, tables, w);
  }
};

// Powers of two, four a chunk. `side`: kFineBytes a chunk (FoldFineScales).
struct Fp8Fine {
  static constexpr int64_t kColumns = kChunk;
  static constexpr int64_t kBytes = 128;
  static constexpr int64_t kScaleBytes = 0;
  static constexpr int kPartSteps = 1;
  static constexpr bool kScaled = false;
  static constexpr bool kLoaded = false;
  using Scales = const uint8_t*;
  static inline Scales LoadScales(const uint8_t*, const void* side, int64_t chunk) {
    return static_cast<const uint8_t*>(side) + kFineBytes * chunk;
  }
  static inline Vec PartScale(const Scales&, int) { return Zero(); }
  static inline void Decode(const uint8_t* bytes, int, const Scales& adds, WVec* w) {
    DecodeE4m3(bytes, kE4m3Tables.bytes, w);
    for (int v = 0; v < kVecs; ++v) w[v] = WithExponents(w[v], _mm512_loadu_si512(adds + 64 * (v / 2)));
  }
};

// The bf16 values of e2m1 codes, twice.
struct E2m1Table {
  constexpr E2m1Table() {
    constexpr uint16_t kValues[8] = {0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0};
    for (int i = 0; i < 32; ++i) words[i] = static_cast<uint16_t>(kValues[i % 8] | (i % 16 < 8 ? 0 : 0x8000));
  }
  alignas(64) uint16_t words[32] = {};
};

// A permute of words reads their low five bits; a table of 16 values, twice. Vector v of a step holds
// elements v and 4 + v of the lanes.
template <class Scales>
struct Fp4Words : Scales {
  static constexpr int kPartSteps = 2;
  static inline void Decode(const uint8_t* bytes, int step, const typename Scales::Scales&, WVec* w) {
    static constexpr E2m1Table kTable;
    const __m512i values = _mm512_load_si512(kTable.words);
    const __m512i packed = Fp4::Dwords(bytes, step);
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v)
      w[v] = _mm512_permutexvar_epi16(_mm512_srli_epi16(packed, static_cast<unsigned>(4 * v)), values);
  }
};
using NvFp4 = Fp4Words<NvFp4Scales>;
using MxFp4 = Fp4Words<MxFp4Scales>;

#include "backend/cpu/kernels/matmul_body.h"

// The choice depends on the weight alone, so that a row's sums do too.
void MultiplyFp8(const MultiplyArgs& args) {
  const int64_t num_chunks = (args.cols + kChunk - 1) / kChunk;
  if (!Foldable(args.chunk_scales, num_chunks)) return MultiplyWith<Fp8>(args, args.chunk_scales);
  uint8_t* const tables = static_cast<uint8_t*>(args.scratch);
  FoldScales(args.chunk_scales, num_chunks, tables);
  if (args.num_tokens <= kMaxStreamTokens) return MultiplyWith<Fp8Folded>(args, tables);
  MultiplyUnpacked<Fp8Folded>(args, tables, tables + (num_chunks + 1) / 2 * kTableBytesPerPack);
}

inline float FloatOfBf16(uint32_t word) {
  const uint32_t bits = word << 16;
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

// Scales that bf16 cannot carry: element by element, which no real weight comes to. A sum for each group, in
// order of packed elements.
void MultiplyFineSlowly(const MultiplyArgs& args) {
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    const X* const x = static_cast<const X*>(args.x) + t * args.x_stride;
    for (int64_t row = 0; row < args.num_rows; ++row) {
      const uint8_t* const codes = args.rows + row * args.row_bytes;
      float sum = 0.0F;
      for (int64_t first = 0; first < args.cols; first += kFineColumns) {
        float part = 0.0F;
        for (int64_t i = first / kChunk * kChunk; i < (first / kChunk + 1) * kChunk; ++i) {
          const int64_t column =
              i / kPackColumns * kPackColumns + E4m3Column(static_cast<int>(i % kPackColumns));
          if (column / kFineColumns != first / kFineColumns || column >= args.cols) continue;
          const uint32_t word = kE4m3Tables.words[codes[column] & 0x7FU] | (codes[column] & 0x80U) << 8;
          part += FloatOfBf16(word) * FloatOfBf16(x[i]);
        }
        sum += part * args.chunk_scales[first / kFineColumns];
      }
      args.out[t * args.out_stride + row] = sum;
    }
  }
}

// As MultiplyFp8.
void MultiplyFp8Fine(const MultiplyArgs& args) {
  const int64_t num_chunks = (args.cols + kChunk - 1) / kChunk;
  if (!Foldable(args.chunk_scales, num_chunks * (kChunk / kFineColumns))) return MultiplyFineSlowly(args);
  uint8_t* const adds = static_cast<uint8_t*>(args.scratch);
  FoldFineScales(args.chunk_scales, num_chunks, adds);
  if (args.num_tokens <= kMaxStreamTokens) return MultiplyWith<Fp8Fine>(args, adds);
  MultiplyUnpacked<Fp8Fine>(args, adds, adds + (num_chunks + 1) / 2 * kTableBytesPerPack);
}

// Rows shorter than a chunk, kVectors long, against kTokens tokens that stay in registers. What a chunk is
// padded with adds zeros.
template <int kVectors, int kTokens>
void MultiplyShortRows(const MultiplyArgs& args, int64_t token) {
  const X* const x = static_cast<const X*>(args.x) + token * args.x_stride;
  __m512i xs[kTokens][kVectors];
  for (int t = 0; t < kTokens; ++t) {
    for (int v = 0; v < kVectors; ++v) xs[t][v] = LoadX(x + t * args.x_stride + v * kLanes);
  }
  float* const out = args.out + token * args.out_stride;
  for (int64_t row = 0; row < args.num_rows; row += kTileRows) {
    __m512i w[kTileRows][kVectors];
#pragma GCC unroll 4
    for (int r = 0; r < kTileRows; ++r) {
      const int64_t at = row + r < args.num_rows ? row + r : args.num_rows - 1;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) w[r][v] = LoadW(args.rows + at * args.row_bytes + 64 * v);
    }
    for (int t = 0; t < kTokens; ++t) {
      Vec sums[kTileRows];
#pragma GCC unroll 4
      for (int r = 0; r < kTileRows; ++r) {
        sums[r] = Zero();
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[r] = Dot(sums[r], w[r][v], xs[t][v]);
        sums[r] = Dot(sums[r], _mm512_setzero_si512(), _mm512_setzero_si512());
      }
      float* const to = out + t * args.out_stride + row;
      if (row + kTileRows <= args.num_rows) {
        Reduce4(sums, to);
        continue;
      }
      for (int64_t r = 0; row + r < args.num_rows; ++r) to[r] = Reduce(sums[r]);
    }
  }
}

template <int kVectors>
void MultiplyShort(const MultiplyArgs& args) {
  constexpr int64_t kAtOnce = 4;
  int64_t token = 0;
  for (; token + kAtOnce <= args.num_tokens; token += kAtOnce)
    MultiplyShortRows<kVectors, kAtOnce>(args, token);
  for (; token < args.num_tokens; ++token) MultiplyShortRows<kVectors, 1>(args, token);
}

void MultiplyBf16(const MultiplyArgs& args) {
  switch (args.cols) {
    case kLanes:
      return MultiplyShort<1>(args);
    case 2 * kLanes:
      return MultiplyShort<2>(args);
    case 3 * kLanes:
      return MultiplyShort<3>(args);
    default:
      return Multiply<Bf16>(args);
  }
}

// Every vector of a pack is looked up in pairs of its eight.
void Arrange(const uint8_t* order, const uint8_t* in, int64_t count, uint8_t* out) {
  constexpr int kVectors = kPackColumns / kLanes;
  constexpr int kPairs = kVectors / 2;
  __m512i words[kVectors];
  for (int v = 0; v < kVectors; ++v)
    words[v] = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(order + v * kLanes)));
  for (int64_t pack = 0; pack < count; pack += kPackColumns) {
    __m512i x[kVectors];
    for (int v = 0; v < kVectors; ++v) x[v] = _mm512_loadu_si512(in + 2 * (pack + v * kLanes));
    for (int v = 0; v < kVectors; ++v) {
      const __m512i pair_of = _mm512_srli_epi16(words[v], 6);
      __m512i y = _mm512_permutex2var_epi16(x[0], words[v], x[1]);
      for (int pair = 1; pair < kPairs; ++pair) {
        const __mmask32 mine =
            _mm512_cmpeq_epi16_mask(pair_of, _mm512_set1_epi16(static_cast<int16_t>(pair)));
        y = _mm512_mask_mov_epi16(y, mine, _mm512_permutex2var_epi16(x[2 * pair], words[v], x[2 * pair + 1]));
      }
      _mm512_storeu_si512(out + 2 * (pack + v * kLanes), y);
    }
  }
}

enum class Interleave : uint8_t { kNone, kBytes, kNibbles };

struct Order {
  constexpr explicit Order(Interleave interleave) {
    for (int i = 0; i < kPackColumns; ++i) {
      const int vector = i / kLanes;
      const int word = i % kLanes;
      int column = i;
      if (interleave == Interleave::kBytes) column = E4m3Column(i);
      if (interleave == Interleave::kNibbles)
        column = Fp4::Column(vector / kVecs, word / 2, word % 2 * 4 + vector % kVecs);
      columns[i] = static_cast<uint8_t>(column);
    }
  }
  uint8_t columns[kPackColumns] = {};
};
constexpr Order kInOrder(Interleave::kNone);
constexpr Order kFp8Order(Interleave::kBytes);
constexpr Order kFp4Order(Interleave::kNibbles);

}  // namespace

// F32 and F16 weights are not exact in bf16.
const MatmulKernels kBf16Matmul = {
    .bf16_activations = true,
    .formats = {{},
                {},
                {kInOrder.columns, MultiplyBf16},
                {kFp8Order.columns, MultiplyFp8},
                {kFp4Order.columns, Multiply<MxFp4>},
                {kFp4Order.columns, Multiply<NvFp4>, NvFp4::kUnit},
                {kFp8Order.columns, MultiplyFp8Fine}},
    .arrange = Arrange,
};

}  // namespace dsv4::backend::cpu::avx512bf16
