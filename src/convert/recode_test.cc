// Tests of recoding: the specification's vectors, round trips, scales too far apart, and hidden MXFP4 found
// again.
#include "convert/recode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "formats/number_formats.h"

namespace dsv4::convert {
namespace {

using ::testing::HasSubstr;

std::vector<float> Values(const Weight& weight) {
  std::vector<float> values(static_cast<size_t>(weight.rows * weight.cols));
  for (int64_t row = 0; row < weight.rows; ++row)
    DequantizeRow(weight, row, values.data() + row * weight.cols);
  return values;
}

QuantizedMatrix Matrix(WeightFormat format, int64_t rows, int64_t cols) {
  QuantizedMatrix matrix{format, rows, cols, 1, 1, {}, {}, 1.0F};
  matrix.data.resize(static_cast<size_t>(rows * cols / 2));
  matrix.scale.resize(static_cast<size_t>(rows * cols / (format == WeightFormat::kMxFp4 ? 32 : 16)));
  return matrix;
}

// All 256 pairs of codes, under the given scale bytes.
QuantizedMatrix MxFp4(const std::vector<uint8_t>& scales) {
  QuantizedMatrix matrix = Matrix(WeightFormat::kMxFp4, 1, static_cast<int64_t>(scales.size()) * 32);
  for (size_t i = 0; i < matrix.data.size(); ++i) matrix.data[i] = static_cast<uint8_t>(i * 37 + 11);
  matrix.scale = scales;
  return matrix;
}

struct Recoded {
  RecodeTarget target;
  QuantizedMatrix matrix;  // Not for kPlain.
  Comparison comparison;
};

Recoded Recode(const Weight& source, WeightFormat format,
               BlockScaleRule rule = BlockScaleRule::kLeastSquares) {
  Recoded result;
  result.target.format = format;
  result.target.rule = rule;
  if (format == WeightFormat::kFp8Block) result.target.block_rows = result.target.block_cols = 128;
  const std::vector<float> values = Values(source);
  if (format == WeightFormat::kNvFp4)
    ChooseGlobalScale(SurveyRows(source, 0, source.rows, values), result.target);
  const auto rows = RecodeRows(source, 0, source.rows, values, result.target, "w");
  EXPECT_TRUE(rows.has_value()) << rows.error().message();
  result.comparison = CompareRows(values, source.cols, *rows, result.target);
  const auto bytes = [](const std::vector<std::byte>& from) {
    const auto* begin = reinterpret_cast<const uint8_t*>(from.data());
    return std::vector<uint8_t>(begin, begin + from.size());
  };
  result.matrix = {format,
                   source.rows,
                   source.cols,
                   result.target.block_rows,
                   result.target.block_cols,
                   bytes(rows->data),
                   bytes(rows->scale),
                   result.target.global_scale};
  return result;
}

std::vector<float> Gaussian(size_t count, float sigma = 1.0F) {
  std::mt19937 generator(3);
  std::normal_distribution<float> normal(0.0F, sigma);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

Weight F32(const std::vector<float>& values, int64_t rows, int64_t cols) {
  Weight weight;
  weight.rows = rows;
  weight.cols = cols;
  weight.data = TensorView::Contiguous(static_cast<const void*>(values.data()), DType::kF32, {rows, cols});
  return weight;
}

// quantization.md section 7.
TEST(Recode, TheSpecificationsTranscode) {
  const Recoded nvfp4 = Recode(MxFp4({120, 123}).View(), WeightFormat::kNvFp4);
  EXPECT_EQ(nvfp4.target.global_scale, 0x1p-12F);
  EXPECT_THAT(nvfp4.matrix.scale, ::testing::ElementsAre(0x60, 0x60, 0x78, 0x78));
  EXPECT_EQ(nvfp4.matrix.data, MxFp4({120, 123}).data);
  EXPECT_TRUE(nvfp4.comparison.lossless());
  EXPECT_EQ(nvfp4.comparison.num_values, 64);
}

TEST(Recode, MxFp4ComesBackFromNvFp4ByteForByte) {
  for (const std::vector<uint8_t>& scales :
       {std::vector<uint8_t>{127}, {110, 127, 115}, {1, 18}, {237, 254 - 3}, {120, 0, 121}}) {
    QuantizedMatrix source = MxFp4(scales);
    for (size_t block = 0; block < scales.size(); ++block) {
      // The byte 0 marks an empty block; -0 is empty too.
      if (scales[block] == 0)
        std::fill_n(source.data.begin() + static_cast<int64_t>(block) * 16, 16, uint8_t{0x80});
    }
    const Recoded nvfp4 = Recode(source.View(), WeightFormat::kNvFp4);
    EXPECT_TRUE(nvfp4.comparison.lossless());
    EXPECT_TRUE(nvfp4.target.global_exponent.has_value());
    const Recoded back = Recode(nvfp4.matrix.View(), WeightFormat::kMxFp4);
    EXPECT_TRUE(back.comparison.lossless());
    EXPECT_EQ(back.matrix.data, source.data);
    EXPECT_EQ(back.matrix.scale, source.scale);
  }
}

TEST(Recode, ScalesTooFarApartForNvFp4AreReportedNotHidden) {
  const Recoded widest = Recode(MxFp4({103, 120}).View(), WeightFormat::kNvFp4);  // 17 octaves.
  EXPECT_TRUE(widest.comparison.lossless());
  const Recoded wider = Recode(MxFp4({90, 120}).View(), WeightFormat::kNvFp4);
  EXPECT_FALSE(wider.target.global_exponent.has_value());
  EXPECT_FALSE(wider.comparison.lossless());
  EXPECT_EQ(wider.comparison.num_vanished, 2);  // Both halves of the small block.
  EXPECT_LT(wider.comparison.relative_rms(), 0.1);
  // A scale beside nothing but zeros decides nothing.
  QuantizedMatrix zeros = MxFp4({90, 120});
  std::fill_n(zeros.data.begin(), 16, uint8_t{0});
  EXPECT_TRUE(Recode(zeros.View(), WeightFormat::kNvFp4).comparison.lossless());
}

TEST(Recode, TheGreatestExponentIsNotTheGreatestMagnitudes) {
  // Deriving scales from maxima, 3 here, is the trap of quantization.md 3.4.
  QuantizedMatrix source = MxFp4({120, 121});
  for (uint8_t& byte : source.data) byte &= 0xDDU;  // Codes 0, 1, 4, 5 and their negatives.
  const Recoded nvfp4 = Recode(source.View(), WeightFormat::kNvFp4);
  EXPECT_TRUE(nvfp4.comparison.lossless());
  EXPECT_EQ(nvfp4.target.global_scale, std::ldexp(1.0F, 121 - 127 - 8));
}

TEST(Recode, WhatWasExpandedFromMxFp4IsFoundAgain) {
  const QuantizedMatrix source = MxFp4({120, 118, 125, 120});
  const std::vector<float> values = Values(source.View());
  const Weight plain = F32(values, 1, 128);
  EXPECT_TRUE(Recode(plain, WeightFormat::kNvFp4).comparison.lossless());
  EXPECT_TRUE(Recode(plain, WeightFormat::kMxFp4).comparison.lossless());
  EXPECT_TRUE(Recode(plain, WeightFormat::kPlain).comparison.lossless());
  // Octaves apart at most 14: FP8 tiles hold them all.
  EXPECT_TRUE(Recode(plain, WeightFormat::kFp8Block).comparison.lossless());
  EXPECT_TRUE(Recode(source.View(), WeightFormat::kFp8Block).comparison.lossless());
}

TEST(Recode, NvFp4ScalesThatAreNoPowersOfTwoCannotBecomeMxFp4) {
  QuantizedMatrix source = Recode(MxFp4({120, 123}).View(), WeightFormat::kNvFp4).matrix;
  EXPECT_TRUE(Recode(source.View(), WeightFormat::kMxFp4).comparison.lossless());
  QuantizedMatrix pair = source;
  pair.scale[1] = 0x68;  // The halves of a block differ by one octave.
  EXPECT_FALSE(Recode(pair.View(), WeightFormat::kMxFp4).comparison.lossless());
  QuantizedMatrix mantissa = source;
  mantissa.scale[0] = mantissa.scale[1] = 0x61;
  const Comparison comparison = Recode(mantissa.View(), WeightFormat::kMxFp4).comparison;
  EXPECT_FALSE(comparison.lossless());
  EXPECT_LE(comparison.num_different, 32);  // The other block stays exact.
  QuantizedMatrix global = source;
  global.global_scale = 0.3F;
  EXPECT_FALSE(Recode(global.View(), WeightFormat::kMxFp4).comparison.lossless());
}

TEST(Recode, CodesUnderAScaleOfZeroStayZero) {
  QuantizedMatrix source = Recode(MxFp4({120, 123}).View(), WeightFormat::kNvFp4).matrix;
  source.scale[0] = 0;
  EXPECT_TRUE(Recode(source.View(), WeightFormat::kMxFp4).comparison.lossless());
  source.scale[1] = 0;
  EXPECT_TRUE(Recode(source.View(), WeightFormat::kMxFp4).comparison.lossless());
}

TEST(Recode, Fp8IsExactInBf16UnlessItsScalesAreNot) {
  QuantizedMatrix fp8 = QuantizeFp8Block(Gaussian(128 * 256), 128, 256, 128, 128);
  EXPECT_TRUE(Recode(fp8.View(), WeightFormat::kPlain).comparison.lossless());
  std::vector<float> scales = {0.3F, 0.7F};
  Weight base = fp8.View();
  base.scale = TensorView::Contiguous(static_cast<const void*>(scales.data()), DType::kF32, {1, 2});
  const Comparison comparison = Recode(base, WeightFormat::kPlain).comparison;
  EXPECT_GT(comparison.num_different, 0);
  EXPECT_LT(comparison.relative_rms(), 1.0 / 256);
  // FP8 that went to bf16 comes back as the same numbers.
  const std::vector<float> values = Values(fp8.View());
  EXPECT_TRUE(Recode(F32(values, 128, 256), WeightFormat::kFp8Block).comparison.lossless());
}

TEST(Recode, ErrorsOfRoundedFormatsAreTheSpecifiedOnes) {
  // quantization.md 1.6; least squares as quantize_test.cc has them.
  const std::vector<float> values = Gaussian(256 * 256);
  const Weight source = F32(values, 256, 256);
  const auto error = [&](WeightFormat format, BlockScaleRule rule) {
    const Recoded recoded = Recode(source, format, rule);
    EXPECT_EQ(recoded.comparison.num_clipped, 0);
    EXPECT_EQ(recoded.comparison.num_vanished, 0);
    return recoded.comparison.relative_rms();
  };
  EXPECT_NEAR(error(WeightFormat::kNvFp4, BlockScaleRule::kAmax), 0.0954, 0.002);
  EXPECT_NEAR(error(WeightFormat::kNvFp4, BlockScaleRule::kLeastSquares), 0.0812, 0.002);
  EXPECT_NEAR(error(WeightFormat::kMxFp4, BlockScaleRule::kAmax), 0.1152, 0.002);
  EXPECT_NEAR(error(WeightFormat::kMxFp4, BlockScaleRule::kLeastSquares), 0.1116, 0.002);
  EXPECT_NEAR(error(WeightFormat::kFp8Block, BlockScaleRule::kAmax), 0.0265, 0.002);
}

TEST(Recode, ValuesTooLargeForBf16AreAnError) {
  const std::vector<float> values = {1.0F, 2.0F, 3.38e38F, 3.4e38F};
  RecodeTarget target;
  EXPECT_THAT(RecodeRows(F32(values, 2, 2), 0, 2, values, target, "some.weight").error().message(),
              HasSubstr("some.weight: row 1, column 1"));
}

TEST(CompareRows, CountsWhatWasClippedAndWhatVanished) {
  RecodeTarget target;
  target.format = WeightFormat::kMxFp4;
  RecodedRows written;
  written.data.assign(32, std::byte{0x77});  // All 6.
  written.scale = {std::byte{127}, std::byte{127}};
  std::vector<float> values(64, 6.0F);
  EXPECT_EQ(CompareRows(values, 64, written, target).num_clipped, 0);
  EXPECT_TRUE(CompareRows(values, 64, written, target).lossless());
  values[3] = -6.9F;
  EXPECT_EQ(CompareRows(values, 64, written, target).num_clipped, 0);
  values[4] = 7.1F;
  const Comparison clipped = CompareRows(values, 64, written, target);
  EXPECT_EQ(clipped.num_clipped, 1);
  EXPECT_EQ(clipped.num_different, 2);
  EXPECT_NEAR(clipped.error_squares, 12.9 * 12.9 + 1.1 * 1.1, 1e-3);
  std::fill_n(written.data.begin(), 16, std::byte{0x80});
  EXPECT_EQ(CompareRows(values, 64, written, target).num_vanished, 1);
  std::fill_n(values.begin(), 32, 0.0F);
  EXPECT_TRUE(CompareRows(values, 64, written, target).lossless());
}

}  // namespace
}  // namespace dsv4::convert
