// The narrow number formats, bit by bit, with their conversions from and to fp32. Every other module says
// "bf16" or "e4m3" by calling these.
//
//   format  bits (high to low)                    bias  largest   specials
//   bf16    1 sign, 8 exponent, 7 mantissa        127   3.39e38   as fp32
//   f16     1 sign, 5 exponent, 10 mantissa       15    65504     exponent 31: infinity, NaN
//   e4m3    1 sign, 4 exponent, 3 mantissa        7     448       0x7F and 0xFF: NaN; no infinity ("fn")
//   e2m1    1 sign, 2 exponent, 1 mantissa        1     6         none; code order is magnitude order
//   e8m0    8 exponent, no sign                   127   2^127     255: NaN; the value is 2^(byte - 127)
//
// All have subnormals where the exponent field is 0, except e8m0, which has no mantissa. Encoding rounds to
// nearest, ties to the even code. Source: the OCP Microscaling and FP8 formats (quantization.md 1.1, 1.3 and
// 3.1).
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace dsv4 {

// --- bf16 -----------------------------------------------------------------------------------------------------------

constexpr float FloatFromBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// NaN stays NaN (made quiet): adding the rounding increment to a NaN pattern could carry into infinity.
constexpr uint16_t Bf16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<uint16_t>((bits >> 16) | 0x0040U);
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

constexpr float RoundToBf16(float value) { return FloatFromBf16(Bf16FromFloat(value)); }

// --- f16 ------------------------------------------------------------------------------------------------------------

float FloatFromF16(uint16_t bits);
// Past 65520 the result is infinity.
uint16_t F16FromFloat(float value);

// --- e4m3 -----------------------------------------------------------------------------------------------------------

inline constexpr float kE4m3Max = 448.0F;
inline constexpr uint8_t kE4m3NaN = 0x7F;

// Treatment of magnitudes that would round past 448.
enum class Overflow : uint8_t { kSaturate, kNaN };

extern const std::array<float, 256> kE4m3Values;
inline float FloatFromE4m3(uint8_t code) { return kE4m3Values[code]; }
// NaN gives NaN under either rule; infinity counts as overflow.
uint8_t E4m3FromFloat(float value, Overflow overflow = Overflow::kSaturate);

// --- e2m1 -----------------------------------------------------------------------------------------------------------

inline constexpr float kE2m1Max = 6.0F;
inline constexpr std::array<float, 16> kE2m1Values = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                                      -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
constexpr float FloatFromE2m1(uint8_t code) { return kE2m1Values[code & 0xFU]; }
// Saturates at 6; NaN, which e2m1 cannot hold, becomes 0.
uint8_t E2m1FromFloat(float value);

// Two codes share a byte: element 2j of a row in the low nibble of byte j, element 2j + 1 in the high one.
constexpr uint8_t PackE2m1(uint8_t even, uint8_t odd) {
  return static_cast<uint8_t>((even & 0xFU) | (static_cast<uint32_t>(odd) << 4));
}
constexpr uint8_t EvenE2m1(uint8_t packed) { return packed & 0xFU; }
constexpr uint8_t OddE2m1(uint8_t packed) { return static_cast<uint8_t>(packed >> 4); }

// --- e8m0 -----------------------------------------------------------------------------------------------------------

inline constexpr uint8_t kE8m0NaN = 0xFF;
inline constexpr int kE8m0Bias = 127;

// 2^(code - 127): code 0 is the fp32 subnormal 2^-127.
constexpr float FloatFromE8m0(uint8_t code) {
  if (code == kE8m0NaN) return std::bit_cast<float>(0x7FC00000U);
  if (code == 0) return std::bit_cast<float>(0x00400000U);
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

// ceil(log2(value)) of a positive normal number, from its bits, as the release's kernels take it. The
// function log2() may fall on either side of an exact power of two.
constexpr int CeilLog2(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<int>((bits >> 23) & 0xFFU) - 127 + ((bits & 0x7FFFFFU) != 0 ? 1 : 0);
}

}  // namespace dsv4
