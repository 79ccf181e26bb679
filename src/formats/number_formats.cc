// Bit-level conversions between fp32 and bf16, f16, e4m3, e2m1 and e8m0.
#include "formats/number_formats.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dsv4 {

namespace {

constexpr float DecodeE4m3(uint32_t code) {
  const uint32_t sign = code >> 7;
  const uint32_t exponent = (code >> 3) & 0xFU;
  const uint32_t mantissa = code & 0x7U;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  constexpr float kSubnormalStep = 0x1p-9F;
  float value = static_cast<float>(exponent == 0 ? mantissa : 8 + mantissa) * kSubnormalStep;
  for (uint32_t e = 1; e < exponent; ++e) value *= 2.0F;
  return sign != 0 ? -value : value;
}

constexpr std::array<float, 256> DecodeAllE4m3() {
  std::array<float, 256> values = {};
  for (uint32_t code = 0; code < 256; ++code) values[code] = DecodeE4m3(code);
  return values;
}

constexpr float PowerOfTwo(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

// The code, without sign, of a magnitude that does not overflow. A carry out of the mantissa lands in the
// exponent by itself, since codes are in magnitude order.
template <int kMantissaBits, int kBias>
uint32_t EncodeMagnitude(float magnitude) {
  constexpr float kSmallestNormal = PowerOfTwo(1 - kBias);
  if (magnitude < kSmallestNormal) {
    // Counted in subnormal steps: adding 2^23 leaves no bits for a fraction, so the addition itself rounds to
    // even.
    constexpr float kStepsPerUnit = PowerOfTwo(kBias + kMantissaBits - 1);
    return std::bit_cast<uint32_t>(magnitude * kStepsPerUnit + 0x1p23F) - std::bit_cast<uint32_t>(0x1p23F);
  }
  constexpr int kDropped = 23 - kMantissaBits;
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  const uint32_t rounded = bits + (1U << (kDropped - 1)) - 1U + ((bits >> kDropped) & 1U);
  return (rounded >> kDropped) - (static_cast<uint32_t>(127 - kBias) << kMantissaBits);
}

}  // namespace

constinit const std::array<float, 256> kE4m3Values = DecodeAllE4m3();

float FloatFromF16(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000U) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1FU;
  const uint32_t mantissa = bits & 0x3FFU;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

uint16_t F16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const float magnitude = std::bit_cast<float>(bits & 0x7FFFFFFFU);
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7E00U);
  if (magnitude >= 65520.0F) return static_cast<uint16_t>(sign | 0x7C00U);
  return static_cast<uint16_t>(sign | EncodeMagnitude<10, 15>(magnitude));
}

uint8_t E4m3FromFloat(float value, Overflow overflow) {
  const uint32_t sign = std::signbit(value) ? 0x80U : 0U;
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return static_cast<uint8_t>(sign | kE4m3NaN);
  // 464 lies half-way between 448 (even) and the 480 that NaN's code would stand for.
  if (magnitude > 464.0F)
    return static_cast<uint8_t>(sign | (overflow == Overflow::kSaturate ? 0x7EU : 0x7FU));
  return static_cast<uint8_t>(sign | EncodeMagnitude<3, 7>(magnitude));
}

uint8_t E2m1FromFloat(float value) {
  if (std::isnan(value)) return 0;
  const uint32_t sign = std::signbit(value) ? 8U : 0U;
  const float magnitude = std::min(std::fabs(value), kE2m1Max);
  return static_cast<uint8_t>(sign | EncodeMagnitude<1, 1>(magnitude));
}

}  // namespace dsv4
