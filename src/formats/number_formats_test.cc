// Tests of number formats: every code, every tie, overflow, NaN, signs and nibble order.
#include "formats/number_formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace dsv4 {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(Bf16, EveryCodeRoundTrips) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = FloatFromBf16(static_cast<uint16_t>(code));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(RoundToBf16(value))) << code;
    } else {
      EXPECT_EQ(Bf16FromFloat(value), code);
    }
  }
}

TEST(Bf16, TiesGoToEvenAndNeighboursToTheNearer) {
  for (uint32_t code = 0; code < 0x7F7F; ++code) {
    const uint32_t low = code << 16;
    EXPECT_EQ(Bf16FromFloat(std::bit_cast<float>(low + 0x7FFFU)), code);
    EXPECT_EQ(Bf16FromFloat(std::bit_cast<float>(low + 0x8000U)), code + (code & 1U));
    EXPECT_EQ(Bf16FromFloat(std::bit_cast<float>(low + 0x8001U)), code + 1);
  }
}

TEST(Bf16, NaNWithLowPayloadStaysNaN) {
  // 0x7F800001 truncated would be infinity; 0x7FFFFFFF plus the rounding increment would carry into the sign.
  for (const uint32_t bits : {0x7F800001U, 0x7FFFFFFFU, 0xFF800001U, 0xFFFFFFFFU}) {
    EXPECT_TRUE(std::isnan(RoundToBf16(std::bit_cast<float>(bits)))) << bits;
  }
  EXPECT_EQ(RoundToBf16(kInfinity), kInfinity);
  EXPECT_EQ(RoundToBf16(std::numeric_limits<float>::max()), kInfinity);
}

TEST(F16, EveryCodeRoundTrips) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = FloatFromF16(static_cast<uint16_t>(code));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(FloatFromF16(F16FromFloat(value))));
    } else {
      EXPECT_EQ(F16FromFloat(value), code);
    }
  }
}

TEST(F16, KnownValuesAndTies) {
  EXPECT_EQ(FloatFromF16(0x3C00), 1.0F);
  EXPECT_EQ(FloatFromF16(0x7BFF), 65504.0F);
  EXPECT_EQ(FloatFromF16(0x0001), 0x1p-24F);
  EXPECT_EQ(F16FromFloat(65519.9F), 0x7BFF);
  EXPECT_EQ(F16FromFloat(65520.0F), 0x7C00);
  EXPECT_EQ(F16FromFloat(0x1p-25F), 0x0000);
  EXPECT_EQ(F16FromFloat(std::nextafter(0x1p-25F, 1.0F)), 0x0001);
  for (uint32_t code = 0; code < 0x7BFF; ++code) {
    const float low = FloatFromF16(static_cast<uint16_t>(code));
    const float high = FloatFromF16(static_cast<uint16_t>(code + 1));
    EXPECT_EQ(F16FromFloat((low + high) / 2), code + (code & 1U));
  }
}

// Independent of the decoder: the definition of the format.
double E4m3ByDefinition(int code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude =
      exponent == 0 ? mantissa * std::pow(2.0, -9) : (1 + mantissa / 8.0) * std::pow(2.0, exponent - 7);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

TEST(E4m3, All256CodesDecodeAndRoundTrip) {
  for (int code = 0; code < 256; ++code) {
    const float value = FloatFromE4m3(static_cast<uint8_t>(code));
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(E4m3FromFloat(value) & 0x7F, 0x7F);
      continue;
    }
    EXPECT_EQ(static_cast<double>(value), E4m3ByDefinition(code));
    EXPECT_EQ(E4m3FromFloat(value), code);
  }
}

TEST(E4m3, EveryTieGoesToTheEvenCode) {
  for (int code = 0; code < 0x7E; ++code) {
    const float low = FloatFromE4m3(static_cast<uint8_t>(code));
    const float high = FloatFromE4m3(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    EXPECT_EQ(E4m3FromFloat(middle), code + (code & 1)) << middle;
    EXPECT_EQ(E4m3FromFloat(std::nextafter(middle, 0.0F)), code);
    EXPECT_EQ(E4m3FromFloat(std::nextafter(middle, 1e9F)), code + 1);
    EXPECT_EQ(E4m3FromFloat(-middle), (code + (code & 1)) | 0x80);
  }
}

TEST(E4m3, OverflowFollowsTheRule) {
  EXPECT_EQ(E4m3FromFloat(464.0F, Overflow::kNaN), 0x7E);
  EXPECT_EQ(E4m3FromFloat(465.0F, Overflow::kNaN), 0x7F);
  EXPECT_EQ(E4m3FromFloat(465.0F), 0x7E);
  EXPECT_EQ(E4m3FromFloat(-kInfinity), 0xFE);
  EXPECT_EQ(E4m3FromFloat(-kInfinity, Overflow::kNaN), 0xFF);
  EXPECT_EQ(E4m3FromFloat(kNaN) & 0x7F, 0x7F);
}

TEST(E2m1, TiesSaturationAndSigns) {
  const struct {
    float value;
    float rounded;
  } cases[] = {{0.25F, 0}, {0.75F, 1}, {1.25F, 1}, {1.75F, 2}, {2.5F, 2},
               {3.5F, 4},  {5, 4},     {7, 6},     {1e30F, 6}};
  for (const auto& c : cases) {
    EXPECT_EQ(FloatFromE2m1(E2m1FromFloat(c.value)), c.rounded) << c.value;
    EXPECT_EQ(FloatFromE2m1(E2m1FromFloat(-c.value)), -c.rounded) << c.value;
  }
  for (uint8_t code = 0; code < 7; ++code) {
    const float middle = (FloatFromE2m1(code) + FloatFromE2m1(static_cast<uint8_t>(code + 1))) / 2;
    EXPECT_EQ(E2m1FromFloat(std::nextafter(middle, 0.0F)), code);
    EXPECT_EQ(E2m1FromFloat(std::nextafter(middle, 9.0F)), code + 1);
  }
  for (uint8_t code = 0; code < 16; ++code) EXPECT_EQ(E2m1FromFloat(FloatFromE2m1(code)), code);
  EXPECT_EQ(E2m1FromFloat(kNaN), 0);
  EXPECT_EQ(E2m1FromFloat(0x1p-149F), 0);
}

TEST(E2m1, EvenElementIsInTheLowNibble) {
  EXPECT_EQ(PackE2m1(0x1, 0xA), 0xA1);
  EXPECT_EQ(EvenE2m1(0xA1), 0x1);
  EXPECT_EQ(OddE2m1(0xA1), 0xA);
}

TEST(E8m0, EveryCode) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(FloatFromE8m0(static_cast<uint8_t>(code)), std::ldexp(1.0F, code - 127));
  }
  EXPECT_TRUE(std::isnan(FloatFromE8m0(255)));
}

TEST(CeilLog2, IsExactAtPowersAndNextToThem) {
  for (int e = -126; e < 127; ++e) {
    const float power = std::ldexp(1.0F, e);
    EXPECT_EQ(CeilLog2(power), e);
    EXPECT_EQ(CeilLog2(std::nextafter(power, kInfinity)), e + 1);
    if (e > -126) {
      EXPECT_EQ(CeilLog2(std::nextafter(power, 0.0F)), e);
    }
  }
}

}  // namespace
}  // namespace dsv4
