// Tests of cache rows: golden vectors, sizes, rounded rows bit for bit, NaN, and formats that cannot be.
#include "formats/cache_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "formats/number_formats.h"
#include "formats/quantize.h"

namespace dsv4 {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<uint8_t> Packed(const CacheFormat& format, const std::vector<float>& values) {
  std::vector<std::byte> row(static_cast<size_t>(format.RowBytes(static_cast<int64_t>(values.size()))),
                             std::byte{0xAA});
  const Status status = PackRow(format, values, row.data());
  EXPECT_TRUE(status.ok()) << status.ToString();
  std::vector<uint8_t> bytes;
  for (const std::byte byte : row) bytes.push_back(static_cast<uint8_t>(byte));
  return bytes;
}

std::string PackError(const CacheFormat& format, const std::vector<float>& values) {
  std::vector<std::byte> row(static_cast<size_t>(format.RowBytes(static_cast<int64_t>(values.size()))));
  return PackRow(format, values, row.data()).ToString();
}

std::vector<float> Unpacked(const CacheFormat& format, const std::vector<uint8_t>& bytes, size_t width) {
  std::vector<std::byte> row;
  for (const uint8_t byte : bytes) row.push_back(std::byte{byte});
  std::vector<float> values(width);
  UnpackRow(format, row.data(), values);
  return values;
}

// The same numbers, zeros with their signs; any NaN is NaN.
void ExpectSame(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want[i])) {
      EXPECT_TRUE(std::isnan(got[i])) << "column " << i;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
          << "column " << i << ": " << got[i] << ", want " << want[i];
    }
  }
}

// Formats of the release and of V4.1, with the widths of their rows.
struct Case {
  CacheFormat format;
  int64_t width;
  int64_t row_bytes;
};
const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {CacheFormat::Fp8(448, 64), 512, 592},               // 448 + 128 + 7, and 9 of zeros
      {CacheFormat::Fp4(128, 32), 128, 68},                // 64 + 4
      {CacheFormat::Fp8(512, 32), 512, 528},               // V4.1's window: 512 + 16
      {CacheFormat::Fp4WithE4m3Scales(512, 16), 512, 288}  // V4.1's entries: 256 + 32
  };
  return cases;
}

// As ops round rows before they are stored: to the grid of the format, then to bf16.
std::vector<float> OnGrid(const Case& c, std::vector<float> values) {
  const auto coded = static_cast<size_t>(c.format.num_coded);
  if (c.format.code == CacheCode::kE4m3) {
    RoundToFp8Groups(std::span(values).first(coded), c.format.group, std::span(values).first(coded));
  } else if (c.format.scale == CacheScale::kE8m0) {
    RoundToFp4Groups(values, c.format.group, values);
  } else {
    // model.md of V4.1: s = e4m3(max(amax, 6 * 2^-9) / 6).
    for (size_t begin = 0; begin < values.size(); begin += static_cast<size_t>(c.format.group)) {
      float max = 6 * 0x1p-9F;
      for (size_t i = 0; i < static_cast<size_t>(c.format.group); ++i)
        max = std::max(max, std::fabs(values[begin + i]));
      const float scale = FloatFromE4m3(E4m3FromFloat(max / 6));
      for (size_t i = 0; i < static_cast<size_t>(c.format.group); ++i)
        values[begin + i] = FloatFromE2m1(E2m1FromFloat(values[begin + i] / scale)) * scale;
    }
  }
  for (float& value : values) value = RoundToBf16(value);
  return values;
}

TEST(CacheRows, GoldenVectors) {
  EXPECT_THAT(Packed(CacheFormat::Fp8(4, 2), {1.75F, -448, 0.5F, -0.0F, 3, -1.5F}),
              ElementsAreArray<uint8_t>(
                  {0x3E, 0xFE, 0x78, 0x80, 0x40, 0x40, 0xC0, 0xBF, 0x7F, 0x76, 0, 0, 0, 0, 0, 0}));
  EXPECT_THAT(Packed(CacheFormat::Fp4(4, 4), {6, -0.5F, -0.0F, 3}),
              ElementsAreArray<uint8_t>({0x97, 0x58, 0x7F, 0}));
  const std::vector<uint8_t> v41 = Packed(CacheFormat::Fp4WithE4m3Scales(4, 4), {7.5F, -0.625F, 0, 3.75F});
  EXPECT_EQ(v41[0], 0x97);
  EXPECT_EQ(v41[1], 0x50);
  EXPECT_EQ(v41[2], 0x3A);  // 1.25
  EXPECT_THAT(Packed(DType::kBF16, {1, -2}), ElementsAreArray<uint8_t>({0x80, 0x3F, 0, 0xC0}));
  // Zeros take the scale 1.
  EXPECT_THAT(Packed(CacheFormat::Fp4(2, 2), {0, 0}), ElementsAreArray<uint8_t>({0, 0x7F, 0, 0}));
}

TEST(CacheRows, RowBytes) {
  for (const Case& c : Cases()) {
    EXPECT_EQ(c.format.RowBytes(c.width), c.row_bytes) << ToString(c.format);
    EXPECT_TRUE(Validate(c.format, c.width).ok()) << Validate(c.format, c.width).ToString();
  }
  EXPECT_EQ(CacheFormat(DType::kBF16).RowBytes(512), 1024);
  EXPECT_EQ(ToString(Cases()[0].format), "448 x E4M3 / 64 E8M0 + BF16");
}

// Values after the release's rounding are stored without loss, at any magnitude, sparse rows and zeros
// included.
TEST(CacheRows, RoundedRowsComeBackBitForBit) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const Case& c : Cases()) {
    for (int round = 0; round < 400; ++round) {
      std::vector<float> values(static_cast<size_t>(c.width));
      const int exponent = c.format.scale == CacheScale::kE4m3 ? static_cast<int>(random() % 14) - 7
                                                               : static_cast<int>(random() % 120) - 60;
      for (float& value : values) {
        value = std::ldexp(normal(random), exponent);
        if (round % 4 == 1) value = std::ldexp(value, -static_cast<int>(random() % 24));
        if (round % 4 == 2 && random() % 8 != 0) value = random() % 2 == 0 ? 0.0F : -0.0F;
      }
      const std::vector<float> rounded = OnGrid(c, values);
      const std::vector<uint8_t> bytes = Packed(c.format, rounded);
      ExpectSame(Unpacked(c.format, bytes, values.size()), rounded);
      // Equal values are equal bytes: what is read back packs to what it was.
      EXPECT_EQ(Packed(c.format, Unpacked(c.format, bytes, values.size())), bytes);
      if (HasFailure()) {
        ADD_FAILURE() << ToString(c.format) << ", round " << round;
        return;
      }
    }
  }
}

// Every code under every scale, one group each: what bytes may say, a file's too.
TEST(CacheRows, AnyBytesUnpack) {
  const CacheFormat fp8 = CacheFormat::Fp8(256, 256);
  const CacheFormat fp4 = CacheFormat::Fp4(16, 16);
  const CacheFormat fp4_e4m3 = CacheFormat::Fp4WithE4m3Scales(16, 16);
  for (int scale = 0; scale < 256; ++scale) {
    std::vector<uint8_t> codes(static_cast<size_t>(fp8.RowBytes(256)));
    for (size_t i = 0; i < 256; ++i) codes[i] = static_cast<uint8_t>(i);
    codes[256] = static_cast<uint8_t>(scale);
    const std::vector<float> values = Unpacked(fp8, codes, 256);
    for (size_t i = 0; i < 256; ++i) {
      const float want = FloatFromE4m3(static_cast<uint8_t>(i)) * FloatFromE8m0(static_cast<uint8_t>(scale));
      EXPECT_TRUE(std::isnan(want) ? std::isnan(values[i]) : values[i] == want) << scale << " " << i;
      EXPECT_EQ(std::isnan(values[i]), scale == 0xFF || (i & 0x7F) == 0x7F);
    }
    // Finite values pack again, by the same numbers.
    if (scale < 247) ExpectSame(Unpacked(fp8, Packed(fp8, values), 256), values);

    for (const CacheFormat& format : {fp4, fp4_e4m3}) {
      std::vector<uint8_t> nibbles(static_cast<size_t>(format.RowBytes(16)));
      for (size_t i = 0; i < 8; ++i)
        nibbles[i] = PackE2m1(static_cast<uint8_t>(2 * i), static_cast<uint8_t>(2 * i + 1));
      nibbles[8] = static_cast<uint8_t>(scale);
      const std::vector<float> four = Unpacked(format, nibbles, 16);
      const float s = format.scale == CacheScale::kE8m0 ? FloatFromE8m0(static_cast<uint8_t>(scale))
                                                        : FloatFromE4m3(static_cast<uint8_t>(scale));
      for (size_t i = 0; i < 16; ++i) {
        const float want = FloatFromE2m1(static_cast<uint8_t>(i)) * s;
        EXPECT_TRUE(std::isnan(want) ? std::isnan(four[i]) : four[i] == want) << scale << " " << i;
      }
      const bool negative = format.scale == CacheScale::kE4m3 && scale >= 0x80;
      if (std::isnan(s) || std::isfinite(6 * s)) {
        if (!negative && s != 0.0F) ExpectSame(Unpacked(format, Packed(format, four), 16), four);
      }
    }
  }
}

TEST(CacheRows, NaNIsKept) {
  const CacheFormat fp8 = CacheFormat::Fp8(4, 4);
  ExpectSame(Unpacked(fp8, Packed(fp8, {1, kNaN, -2, kNaN}), 4), {1, kNaN, -2, kNaN});
  const CacheFormat fp4 = CacheFormat::Fp4(4, 2);
  ExpectSame(Unpacked(fp4, Packed(fp4, {kNaN, kNaN, 1, -6}), 4), {kNaN, kNaN, 1, -6});
  EXPECT_EQ(Packed(fp4, {kNaN, kNaN, 1, -6})[2], kE8m0NaN);
  EXPECT_THAT(PackError(fp4, {1, 1, kNaN, 2}), HasSubstr("column 3: 2 is no number of the format"));
  EXPECT_THAT(PackError(CacheFormat(DType::kBF16), {1, kInfinity}), HasSubstr("OK"));
}

TEST(CacheRows, WhatIsNotOnTheGridIsAnError) {
  const CacheFormat fp8 = CacheFormat::Fp8(2, 2);
  EXPECT_THAT(
      PackError(fp8, {448, 1.0625F, 0}),
      HasSubstr("INVALID_ARGUMENT: cached row, column 1: 1.0625 is no number of the format 2 x E4M3"));
  EXPECT_THAT(PackError(fp8, {448, 0x1p-10F, 0}), HasSubstr("column 1"));  // Half a subnormal step.
  EXPECT_THAT(PackError(fp8, {kInfinity, 1, 0}), HasSubstr("column 0: inf"));
  EXPECT_THAT(PackError(fp8, {1, 1, 1.001F}), HasSubstr("column 2: 1.001"));  // No bf16.
  const CacheFormat fp4 = CacheFormat::Fp4(2, 2);
  EXPECT_THAT(PackError(fp4, {6, 5}), HasSubstr("column 1: 5"));
  EXPECT_THAT(PackError(fp4, {kInfinity, 1}), HasSubstr("column 0: inf"));
  EXPECT_THAT(PackError(CacheFormat::Fp4WithE4m3Scales(2, 2), {6 * 1.0625F, 0}), HasSubstr("no number"));
}

TEST(CacheRows, FormatsThatThereCannotBe) {
  const auto error = [](const CacheFormat& format, int64_t width) {
    return Validate(format, width).ToString();
  };
  EXPECT_THAT(error(CacheFormat::Fp8(448, 64), 256),
              HasSubstr("coded columns: got 448, want 1 to the width 256"));
  EXPECT_THAT(error(CacheFormat::Fp8(448, 60), 512), HasSubstr("group: got 60"));
  EXPECT_THAT(error(CacheFormat::Fp8(0, 2), 512), HasSubstr("coded columns: got 0"));
  EXPECT_THAT(error(CacheFormat::Fp4(6, 2), 8), HasSubstr("bytes of codes: got 3"));
  EXPECT_THAT(error(DType::kI32, 4), HasSubstr("dtype: got I32, want BF16 or F32"));
  CacheFormat both = CacheFormat::Fp8(4, 2);
  both.scale = CacheScale::kE4m3;
  EXPECT_THAT(error(both, 4), HasSubstr("want E8M0"));
  CacheFormat plain = DType::kBF16;
  plain.num_coded = 2;
  EXPECT_THAT(error(plain, 4), HasSubstr("0 without codes"));
}

}  // namespace
}  // namespace dsv4
