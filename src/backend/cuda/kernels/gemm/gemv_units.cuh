// Common steps of the kernels for a few tokens on weights, whichever way these come to a warp
// (gemv_tiles.cuh, gemv_warps.cuh, gemv_tma_tiles.cuh). A unit of any kind is multiplied by tokens that lie
// in shared memory (gemv_rows.cuh).
//
// The products and their order are those of gemm_mma.cuh; so are the bits.
#pragma once

#include "backend/cuda/device/numeric/narrow_pairs.cuh"
#include "backend/cuda/device/ptx/generation.cuh"
#include "backend/cuda/device/ptx/shared_address.cuh"
#include "backend/cuda/kernels/gemm/gemm_mma.cuh"
#include "backend/cuda/lowering/gemv_shape.h"

namespace dsv4::backend::cuda {

// A unit is what a warp multiplies at a time: 64 bytes of each of 16 rows, 16 bytes of two rows a lane. Two
// are copied together.
inline constexpr int kUnitBytes = 64;

// Data that is read once makes room in L2 before anything else does: activations and instructions stay there.
__device__ __forceinline__ uint64_t EvictFirst() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void CopyToShared16(uint32_t shared, const void* global, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::256B [%0], [%1], 16, %2;" ::"r"(shared),
               "l"(global), "l"(policy)
               : "memory");
}
__device__ __forceinline__ void CopyToShared4(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}
// Prefetches what is needed later while the kernel in front still runs, which it does on Hopper or later.
__device__ __forceinline__ void PrefetchToL2(const void* global, uint32_t num_bytes) {
  if constexpr (kIsHopperOrLater)
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(num_bytes) : "memory");
}

// FP8 weights widen to halves by one conversion for two, NaN included, where bf16 takes ten instructions and a look
// for NaN. So products are of halves where these hold the activations exactly, and as much less of them as block
// scales differ (StoreHalves). They are the same numbers but for powers of two. Scales are applied to activations
// then: a unit has eight pairs of them, and sixteen of weights.
template <StreamKind kKind>
inline constexpr bool kMayBeHalves = kIsHopperOrLater&& kKind == StreamKind::kMxFp8;
inline constexpr float kHalvesFactor = 0x1p-6F;  // Times a half, the activation.

// A matrix among those of one shape.
struct StreamMatrix {
  const uint8_t* data;
  const uint8_t* scale;
  float global_scale;
};

__device__ __forceinline__ StreamMatrix MatrixOf(const DeviceWeight& weight) {
  return {weight.data, static_cast<const uint8_t*>(weight.scale), weight.global_scale};
}

// The format of a kind, as Unpack names it.
constexpr MatmulKind FormatOf(StreamKind kind) {
  switch (kind) {
    case StreamKind::kFp8:
    case StreamKind::kFp8Plain:
      return MatmulKind::kMmaFp8;
    case StreamKind::kMxFp8:
    case StreamKind::kMxFp8Halves:
      return MatmulKind::kMmaMxFp8;
    case StreamKind::kMxFp4:
      return MatmulKind::kMmaMxFp4;
    case StreamKind::kMxFp4Stored:
      return MatmulKind::kMmaMxFp4Stored;
    case StreamKind::kNvFp4:
      return MatmulKind::kMmaNvFp4;
    case StreamKind::kBf16:
      break;
  }
  return MatmulKind::kMmaBf16;
}

__device__ __forceinline__ void MmaHalves(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The lower or upper two e4m3 of a word.
__device__ __forceinline__ uint32_t HalvesOfE4m3(uint32_t word, int which) {
  return HalvesOfE4m3(static_cast<uint16_t>(which == 0 ? word : word >> 16));
}

// Eight columns of a lane's token, in shared memory. Lanes of tokens that do not exist read nothing and get
// anything, since a token's sums are its own lanes'. The unit that reads shared memory is busier than any
// other where weights are narrow.
__device__ __forceinline__ uint4 LoadTokenColumns(const uint16_t* x, bool exists) {
  uint4 columns;
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
               : "=r"(columns.x), "=r"(columns.y), "=r"(columns.z), "=r"(columns.w)
               : "r"(SharedAddress(x)), "r"(static_cast<uint32_t>(exists)));
  return columns;
}

// FP8 weights and activations, both as halves without their scales; factors are the products of both scales,
// by token. The columns of a step are those of Unpack<kMmaFp8>, and powers of two in scales of activations
// move no bit.
__device__ __forceinline__ void MultiplyFp8Unit(float (&sums)[4], const uint4& low, const uint4& high,
                                                const uint16_t* x, bool exists, float factor0,
                                                float factor1) {
  const uint32_t words[2][4] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
  const uint4 x0 = LoadTokenColumns(x, exists);
  const uint4 x1 = LoadTokenColumns(x + 8, exists);
  const uint32_t b[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
  float unit[4] = {};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const uint32_t a[4] = {HalvesOfE4m3(words[0][w], 0), HalvesOfE4m3(words[1][w], 0),
                           HalvesOfE4m3(words[0][w], 1), HalvesOfE4m3(words[1][w], 1)};
    MmaHalves(unit, a, b[2 * w], b[2 * w + 1]);
  }
  sums[0] = fmaf(unit[0], factor0, sums[0]);
  sums[1] = fmaf(unit[1], factor1, sums[1]);
  sums[2] = fmaf(unit[2], factor0, sums[2]);
  sums[3] = fmaf(unit[3], factor1, sums[3]);
}

// FP8 weights and any activations, widened to bf16.
__device__ __forceinline__ void MultiplyFp8PlainUnit(float (&sums)[4], const uint4& low, const uint4& high,
                                                     const uint16_t* x, bool exists, float scale) {
  using Format = Unpack<MatmulKind::kMmaFp8>;
  const uint32_t words[2][4] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
  const uint4 x0 = LoadTokenColumns(x, exists);
  const uint4 x1 = LoadTokenColumns(x + 8, exists);
  const uint32_t b[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
  const uint32_t poison[2] = {Format::Poison(words[0]), Format::Poison(words[1])};
  float unit[4] = {};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const uint32_t a[4] = {Format::Widen(words[0], {}, 2 * w) | (w == 0 ? poison[0] : 0U),
                           Format::Widen(words[1], {}, 2 * w) | (w == 0 ? poison[1] : 0U),
                           Format::Widen(words[0], {}, 2 * w + 1), Format::Widen(words[1], {}, 2 * w + 1)};
    Mma(unit, a, b[2 * w], b[2 * w + 1]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] = fmaf(unit[i], scale, sums[i]);
}

// A block's scale as shared memory has it; of kMxFp8 a word of four blocks' codes.
__device__ __forceinline__ float LoadBlockScale(const StreamShape& shape, const void* scale, int64_t i) {
  if (shape.kind == StreamKind::kMxFp8)
    return __uint_as_float(__ldg(static_cast<const uint32_t*>(scale) + i));
  return LoadScale(scale, shape.scale_dtype, i);
}

// FP8 weights in blocks of kMxFp8Block columns, widened to bf16. `code`: of the lane's scale.
__device__ __forceinline__ void MultiplyMxFp8Unit(float (&sums)[4], const uint4& low, const uint4& high,
                                                  const uint16_t* x, bool exists, uint8_t code) {
  using Format = Unpack<MatmulKind::kMmaMxFp8>;
  const uint32_t words[2][4] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
  const uint4 x0 = LoadTokenColumns(x, exists);
  const uint4 x1 = LoadTokenColumns(x + 8, exists);
  const uint32_t b[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
  const PairScale scales = Format::Expand(code);
  const uint32_t poison[2] = {Format::Poison(words[0]), Format::Poison(words[1])};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const uint32_t a[4] = {Format::Widen(words[0], scales, 2 * w) | (w == 0 ? poison[0] : 0U),
                           Format::Widen(words[1], scales, 2 * w) | (w == 0 ? poison[1] : 0U),
                           Format::Widen(words[0], scales, 2 * w + 1),
                           Format::Widen(words[1], scales, 2 * w + 1)};
    Mma(sums, a, b[2 * w], b[2 * w + 1]);
  }
}

// The same by halves. `code` of the lane's scale, `largest` of the weight's: sums are so much too large, and by
// kHalvesFactor (OfHalves).
__device__ __forceinline__ void MultiplyMxFp8HalvesUnit(float (&sums)[4], const uint4& low, const uint4& high,
                                                        const uint16_t* x, bool exists, uint32_t code,
                                                        uint32_t largest) {
  const uint32_t words[2][4] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
  const uint4 x0 = LoadTokenColumns(x, exists);
  const uint4 x1 = LoadTokenColumns(x + 8, exists);
  const uint32_t b[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
  const uint32_t factor = (code + 15 - largest) * 0x04000400U;  // 2^(code - largest), twice.
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const uint32_t a[4] = {HalvesOfE4m3(words[0][w], 0), HalvesOfE4m3(words[1][w], 0),
                           HalvesOfE4m3(words[0][w], 1), HalvesOfE4m3(words[1][w], 1)};
    MmaHalves(sums, a, MulF16x2(b[2 * w], factor), MulF16x2(b[2 * w + 1], factor));
  }
}
__device__ __forceinline__ float OfHalves(uint32_t largest) {
  return __uint_as_float(largest << 23) * kHalvesFactor;
}

__device__ __forceinline__ void MultiplyBf16Unit(float (&sums)[4], const uint4& low, const uint4& high,
                                                 const uint16_t* x, bool exists) {
  const uint4 b = LoadTokenColumns(x, exists);
  const uint32_t first[4] = {low.x, high.x, low.y, high.y};
  const uint32_t second[4] = {low.z, high.z, low.w, high.w};
  Mma(sums, first, b.x, b.y);
  Mma(sums, second, b.z, b.w);
}

// A lane's scales of a unit, as Unpack::Expand gives them.
template <MatmulKind kKind>
__device__ __forceinline__ typename Unpack<kKind>::Scales ExpandCodes(const uint8_t* codes) {
  if constexpr (kKind == MatmulKind::kMmaNvFp4) {
    constexpr float kFactor = 0x1p100F;
    const float2 wide = WideE4m3(*reinterpret_cast<const uint16_t*>(codes));
    // The high half of a float, twice: one instruction.
    const auto both = [](float x) { return __byte_perm(__float_as_uint(x * kFactor), 0, 0x3232); };
    return {{both(wide.x), both(wide.y)}};
  } else {
    return Unpack<kKind>::Expand(*codes);
  }
}

// columns(i) are the lane's columns 8 i and on of its token.
template <MatmulKind kKind, typename Columns>
__device__ __forceinline__ void MultiplyFp4Unit(float (&sums)[4], const uint4& low, const uint4& high,
                                                const uint8_t* low_scale, const uint8_t* high_scale,
                                                Columns&& columns) {
  using Format = Unpack<kKind>;
  const uint32_t words[2][4] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
  const typename Format::Scales scales[2] = {ExpandCodes<kKind>(low_scale), ExpandCodes<kKind>(high_scale)};
  const auto widen = [&](int r, int i) {
    if constexpr (kKind == MatmulKind::kMmaMxFp4Stored) {
      return Format::WidenByProduct(words[r], scales[r], i);
    } else {
      return Format::Widen(words[r], scales[r], i);
    }
  };
#pragma unroll
  for (int chunk = 0; chunk < 4; ++chunk) {
    const uint4 b = columns(chunk);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int i = chunk * 4 + step * 2;
      const uint32_t a[4] = {widen(0, i), widen(1, i), widen(0, i + 1), widen(1, i + 1)};
      Mma(sums, a, step == 0 ? b.x : b.z, step == 0 ? b.y : b.w);
    }
  }
}

// Scales of FP8 weights: the tile's blocks of columns (LoadBlockScale), and where activations are rounded the
// groups of this lane's two tokens.
struct StreamScales {
  const float* blocks = nullptr;
  const float* token0 = nullptr;
  const float* token1 = nullptr;
  uint32_t largest = 0;  // kMxFp8Halves: the weight's largest code.
};

// A unit of any kind, which is number `unit` of the row. FP4: the lane's scales of its lower row, and how far
// from them those of the upper one are.
template <StreamKind kKind>
__device__ __forceinline__ void MultiplyUnit(float (&sums)[4], const uint4& low, const uint4& high,
                                             const uint16_t* x, bool exists, const StreamScales& by, int unit,
                                             int block_units_log2, const uint8_t* scales, int upper_scales) {
  if constexpr (kKind == StreamKind::kFp8) {
    const float scale = by.blocks[unit >> block_units_log2];
    MultiplyFp8Unit(sums, low, high, x, exists, scale * by.token0[unit / 2], scale * by.token1[unit / 2]);
  } else if constexpr (kKind == StreamKind::kFp8Plain) {
    MultiplyFp8PlainUnit(sums, low, high, x, exists, by.blocks[unit >> block_units_log2]);
  } else if constexpr (kKind == StreamKind::kMxFp8) {
    const int block = unit % 2 * 2 + static_cast<int>(threadIdx.x) % 4 / 2;
    const uint32_t codes = __float_as_uint(by.blocks[unit / 2]);
    MultiplyMxFp8Unit(sums, low, high, x, exists, static_cast<uint8_t>(codes >> (8 * block)));
  } else if constexpr (kKind == StreamKind::kMxFp8Halves) {
    const int block = unit % 2 * 2 + static_cast<int>(threadIdx.x) % 4 / 2;
    const uint32_t codes = __float_as_uint(by.blocks[unit / 2]);
    MultiplyMxFp8HalvesUnit(sums, low, high, x, exists, codes >> (8 * block) & 0xFFU, by.largest);
  } else if constexpr (kKind == StreamKind::kBf16) {
    MultiplyBf16Unit(sums, low, high, x, exists);
  } else {
    MultiplyFp4Unit<FormatOf(kKind)>(sums, low, high, scales, scales + upper_scales,
                                     [&](int i) { return LoadTokenColumns(x + i * 8, exists); });
  }
}

// Calls f<kKind>() with that of kKinds which `kind` is.
template <StreamKind kFirst, StreamKind... kOthers, typename F>
__device__ __forceinline__ void WithStreamKind(StreamKind kind, F&& f) {
  if constexpr (sizeof...(kOthers) == 0) {
    f.template operator()<kFirst>();
  } else {
    if (kind == kFirst) return f.template operator()<kFirst>();
    WithStreamKind<kOthers...>(kind, f);
  }
}

}  // namespace dsv4::backend::cuda
