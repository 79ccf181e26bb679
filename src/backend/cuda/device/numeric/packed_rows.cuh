// Elements of packed cache rows (tensor/cache_format.h) as bf16, which holds them exactly.
//
// Codes become the bits of bf16 numbers whose exponents are those of the codes, too small by a power of two.
// A product by that power and the group's scale is exact, subnormal codes included. The releases' formats
// have their own functions, of eight codes each. All others are read element by element.
#pragma once

#include <cstdint>

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/narrow_pairs.cuh"
#include "backend/cuda/device/numeric/packed_rows.h"

namespace dsv4::backend::cuda {

// A power of two or NaN as bf16, for both of a pair. `exponent`: that of bf16, 0 for the largest subnormal
// power, -7 at least.
__device__ __forceinline__ uint32_t PairOfExponent(int exponent) {
  return (exponent > 0 ? static_cast<uint32_t>(exponent) << 7 : 0x40U) * 0x10001U;
}
inline constexpr uint32_t kPairOfNaN = 0x7FC07FC0U;

// Bits where eight e4m3 codes have a NaN.
__device__ __forceinline__ uint32_t NaNsOfE4m3(uint2 codes) {
  const uint32_t carries = ((codes.x & 0x7F7F7F7FU) + 0x01010101U) | ((codes.y & 0x7F7F7F7FU) + 0x01010101U);
  return carries & 0x80808080U;
}
// Eight codes times `factors`: 2^120 and their group's scale, for both of a pair.
__device__ __forceinline__ uint4 TimesFactors(uint2 codes, uint32_t factors) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t four = i == 0 ? codes.x : codes.y;
    const uint32_t high = ((four >> 4) & 0x07070707U) | (four & 0x80808080U);
    const uint32_t low = (four << 4) & 0xF0F0F0F0U;
    words[2 * i] = MulBf16x2(__byte_perm(low, high, 0x5140), factors);
    words[2 * i + 1] = MulBf16x2(__byte_perm(low, high, 0x7362), factors);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}
inline constexpr uint32_t kFirstLargeE8m0 = 135;  // A scale for which there are no such factors.

// Eight e4m3 codes of one group. A NaN among them makes all eight NaN: a key with one is NaN in all that is
// computed from it.
__device__ __forceinline__ uint4 WidenE4m3(uint2 codes, uint32_t e8m0) {
  constexpr int kTwoTo120 = 120;
  constexpr int kLargest = 254;
  const int exponent = static_cast<int>(e8m0) + kTwoTo120;
  const bool is_nan = NaNsOfE4m3(codes) != 0 || e8m0 == 255;
  uint4 words = TimesFactors(codes, is_nan ? kPairOfNaN : PairOfExponent(min(exponent, kLargest)));
  if (exponent > kLargest) {
    const uint32_t more = PairOfExponent(127 + exponent - kLargest);
    words.x = MulBf16x2(words.x, more);
    words.y = MulBf16x2(words.y, more);
    words.z = MulBf16x2(words.z, more);
    words.w = MulBf16x2(words.w, more);
  }
  return words;
}

// So many of them: store(i, eight numbers). The rare cases, NaN and large scales, have one branch for all. A
// branch for each would keep the compiler from interleaving their instructions, and a warp that widens waits
// for its own.
template <int kCount, typename Store>
__device__ __forceinline__ void WidenE4m3(const uint2 (&codes)[kCount], const uint32_t (&e8m0)[kCount],
                                          Store&& store) {
  constexpr uint32_t kBoth = 0x10001U << 7;  // An exponent's bits in both of a pair.
  uint32_t rare = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    rare |= NaNsOfE4m3(codes[i]) | ((e8m0[i] + (256 - kFirstLargeE8m0)) & 256U);
  if (rare != 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) store(i, WidenE4m3(codes[i], e8m0[i]));
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) store(i, TimesFactors(codes[i], e8m0[i] * kBoth + 120 * kBoth));
}

// The factors of a group of e2m1 codes.
__device__ __forceinline__ uint32_t FactorsOfE8m0(uint32_t e8m0) {
  return e8m0 == 255 ? kPairOfNaN : PairOfExponent(static_cast<int>(e8m0));
}

// Eight e2m1 codes, the first in the lowest bits, of a group with these factors. Bytes of bf16 are looked up
// by a code's magnitude.
__device__ __forceinline__ uint4 WidenE2m1(uint32_t codes, uint32_t factors) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t four = i == 0 ? codes : codes >> 16;
    // 0, .5, 1, 1.5 and 2, 3, 4, 6, the first in the lowest byte.
    uint32_t high = __byte_perm(0x3F3F3F00U, 0x40404040U, four & 0x7777U);
    const uint32_t low = __byte_perm(0xC0800000U, 0xC0804000U, four & 0x7777U);
    // A code's sign makes all bits of its byte those of 0x80's highest.
    uint32_t signs;
    asm("prmt.b32 %0, %1, %1, %2;" : "=r"(signs) : "r"(0x80808080U), "r"(four));
    high |= (signs << 1) & 0x80808080U;
    words[2 * i] = MulBf16x2(__byte_perm(low, high, 0x5140), factors);
    words[2 * i + 1] = MulBf16x2(__byte_perm(low, high, 0x7362), factors);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// A lane's sixteen columns of a row of V4.1: codes, and their group's scale.
struct SixteenColumns {
  uint4 codes = {};
  uint32_t scale = 0;

  __device__ __forceinline__ void Load(const unsigned char* row, bool is_window, int lane) {
    if (is_window) {
      codes = *reinterpret_cast<const uint4*>(row + 16 * lane);
      scale = row[kV41WindowScales + lane / 2];
    } else {
      const uint2 half = *reinterpret_cast<const uint2*>(row + 8 * lane);
      codes = make_uint4(half.x, half.y, 0, 0);
      scale = row[kV41EntryScales + lane];
    }
  }
  __device__ __forceinline__ void Widen(bool is_window, uint4 (&wide)[2]) const {
    if (is_window) {
      wide[0] = WidenE4m3(make_uint2(codes.x, codes.y), scale);
      wide[1] = WidenE4m3(make_uint2(codes.z, codes.w), scale);
    } else {
      const uint32_t factors = __byte_perm(__float_as_uint(FromE4m3(static_cast<uint8_t>(scale))), 0, 0x3232);
      wide[0] = WidenE2m1(codes.x, factors);
      wide[1] = WidenE2m1(codes.y, factors);
    }
  }
};

// The scale of a group.
__device__ __forceinline__ float PackedScale(CacheScale scale, uint8_t code) {
  if (scale == CacheScale::kE4m3) return FromE4m3(code);
  if (code == 255) return __uint_as_float(0x7FC00000U);
  return __uint_as_float(code == 0 ? 0x00400000U : static_cast<uint32_t>(code) << 23);
}

// Column `column` of a packed row of `width`, of any format.
__device__ __forceinline__ float PackedElement(const CacheFormat& format, const unsigned char* row, int width,
                                               int column) {
  if (column >= format.num_coded) {
    const unsigned char* const rest = row + format.CodeBytes();
    const int64_t i = column - format.num_coded;
    if (format.dtype == DType::kF32) return reinterpret_cast<const float*>(rest)[i];
    return ToFloat(reinterpret_cast<const Bf16*>(rest)[i]);
  }
  const float scale =
      PackedScale(format.scale, row[format.ScaleBegin(width) + column / static_cast<int>(format.group)]);
  if (format.code == CacheCode::kE4m3) return FromE4m3(row[column]) * scale;
  const uint32_t code = row[column / 2] >> (column % 2 * 4) & 0xFU;
  const uint32_t magnitude = code & 7U;
  const float value = magnitude < 2 ? 0.5F * static_cast<float>(magnitude)
                                    : __uint_as_float(((magnitude >> 1) + 126) << 23 | (magnitude & 1) << 22);
  return ((code & 8U) != 0 ? -value : value) * scale;
}

// The same as T of a row that may be packed or not.
template <typename T>
__device__ __forceinline__ float StoredElement(const CacheFormat& format, const void* row, int width,
                                               int column) {
  if (!format.packed()) return ToFloat(static_cast<const T*>(row)[column]);
  return PackedElement(format, static_cast<const unsigned char*>(row), width, column);
}

}  // namespace dsv4::backend::cuda
