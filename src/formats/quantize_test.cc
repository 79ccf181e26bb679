// Tests of quantisers: specification vectors, round-tripped scales, extreme blocks, and least-squares scales.
#include "formats/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "formats/number_formats.h"

namespace dsv4 {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

// The block of quantization.md section 7.
std::vector<float> SpecBlock(float factor = 1.0F) {
  std::vector<float> block;
  for (int i = 0; i < 16; ++i)
    block.push_back(factor * (i % 2 == 0 ? -1.0F : 1.0F) * static_cast<float>(i) / 10.0F);
  block[0] = 0.0F;
  block[1] = 0.1F * factor;
  return block;
}

std::vector<float> Dequantize(const QuantizedMatrix& matrix) {
  const Weight weight = matrix.View();
  EXPECT_TRUE(ValidateWeight(weight, "w").ok()) << ValidateWeight(weight, "w").ToString();
  EXPECT_TRUE(ValidateScaleValues(weight, "w").ok());
  std::vector<float> values(static_cast<size_t>(matrix.rows * matrix.cols));
  for (int64_t row = 0; row < matrix.rows; ++row)
    DequantizeRow(weight, row, values.data() + row * matrix.cols);
  return values;
}

std::vector<float> Gaussian(size_t count, uint32_t seed, float sigma = 1.0F) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, sigma);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

double RelativeRms(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(a[i]), 2);
  }
  return std::sqrt(error / norm);
}

TEST(QuantizeNvFp4, SpecificationVectors) {
  const std::vector<uint8_t> packed = {0x10, 0x2A, 0x4B, 0x5C, 0x6D, 0x6E, 0x7E, 0x7F};
  const std::vector<float> values = {0,     .125F, -.25F, .25F, -.375F, .5F,  -.5F,  .75F,
                                     -.75F, 1,     -1,    1,    -1,     1.5F, -1.5F, 1.5F};
  const QuantizedMatrix unit = QuantizeNvFp4(SpecBlock(), 1, 16, 1.0F);
  EXPECT_THAT(unit.scale, ElementsAre(0x28));
  EXPECT_THAT(unit.data, ElementsAreArray(packed));
  EXPECT_THAT(Dequantize(unit), ElementsAreArray(values));

  const QuantizedMatrix derived = QuantizeNvFp4(SpecBlock(), 1, 16);
  EXPECT_EQ(derived.global_scale, 1.5F / 2688.0F);
  EXPECT_THAT(derived.scale, ElementsAre(0x7E));
  EXPECT_THAT(derived.data, ElementsAreArray(packed));
}

// field-lessons.md N3: with the unrounded scale elements 9 and 13 would get codes 6 and 7.
TEST(QuantizeNvFp4, DividesByTheRoundTrippedScale) {
  const QuantizedMatrix matrix = QuantizeNvFp4(SpecBlock(1.07F), 1, 16, 1.0F);
  EXPECT_THAT(matrix.scale, ElementsAre(0x29));
  EXPECT_THAT(matrix.data, ElementsAre(0x10, 0x2A, 0x4B, 0x5C, 0x5D, 0x6E, 0x6E, 0x7F));
}

// field-lessons.md N5: a group's maximum is its own.
TEST(QuantizeNvFp4, HugeNeighbourDoesNotTouchABlock) {
  std::vector<float> values = SpecBlock();
  const std::vector<float> alone = Dequantize(QuantizeNvFp4(values, 1, 16, 1.0F));
  values.insert(values.begin(), 16, 2000.0F);
  values.insert(values.end(), 16, -2000.0F);
  const QuantizedMatrix matrix = QuantizeNvFp4(values, 1, 48, 1.0F);
  EXPECT_EQ(matrix.scale[1], 0x28);
  const std::vector<float> decoded = Dequantize(matrix);
  EXPECT_EQ(std::vector<float>(decoded.begin() + 16, decoded.begin() + 32), alone);
}

// field-lessons.md N10.
TEST(QuantizeNvFp4, ZeroSubnormalAndSingleElementBlocks) {
  std::vector<float> values(64, 0.0F);
  for (size_t i = 16; i < 32; ++i) values[i] = 0x1p-140F;  // Far below what the block scale can hold.
  values[37] = -3.0F;                                      // One element in its block.
  for (size_t i = 48; i < 64; ++i) values[i] = 1.0F;
  const std::vector<float> decoded = Dequantize(QuantizeNvFp4(values, 1, 64));
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(decoded[i], 0.0F) << i;
  for (size_t i = 32; i < 48; ++i) EXPECT_FLOAT_EQ(decoded[i], i == 37 ? -3.0F : 0.0F);

  for (const float tiny : {0.0F, 0x1p-149F, 0x1p-126F}) {
    for (const float value : Dequantize(QuantizeNvFp4(std::vector<float>(16, tiny), 1, 16))) {
      EXPECT_TRUE(std::isfinite(value));
      EXPECT_LE(std::fabs(value), 2 * tiny);
    }
  }
}

TEST(Quantize, ErrorOnGaussianDataIsTheSpecifiedOne) {
  // quantization.md 1.6: NVFP4 0.0954, MXFP4 0.1152, FP8/128 0.0265.
  constexpr int64_t kRows = 512;
  constexpr int64_t kCols = 128;
  const std::vector<float> values = Gaussian(kRows * kCols, 1);
  EXPECT_NEAR(RelativeRms(values, Dequantize(QuantizeNvFp4(values, kRows, kCols))), 0.0954, 0.002);
  EXPECT_NEAR(RelativeRms(values, Dequantize(QuantizeMxFp4(values, kRows, kCols))), 0.1152, 0.002);
  EXPECT_NEAR(RelativeRms(values, Dequantize(QuantizeFp8Block(values, kRows, kCols, 1, 128))), 0.0265, 0.001);
}

double BlockError(const std::vector<float>& a, const std::vector<float>& b, size_t begin, size_t size) {
  double error = 0;
  for (size_t i = begin; i < begin + size; ++i)
    error += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  return error;
}

TEST(Quantize, LeastSquaresScalesLowerTheErrorOfEveryBlockTheyChange) {
  constexpr int64_t kRows = 512;
  constexpr int64_t kCols = 128;
  constexpr auto kLeastSquares = BlockScaleRule::kLeastSquares;
  const std::vector<float> values = Gaussian(kRows * kCols, 1);
  const float global = NvFp4GlobalScale(4.5F);
  const std::vector<float> nvfp4 = Dequantize(QuantizeNvFp4(values, kRows, kCols, global));
  const std::vector<float> best_nvfp4 =
      Dequantize(QuantizeNvFp4(values, kRows, kCols, global, kLeastSquares));
  const std::vector<float> mxfp4 = Dequantize(QuantizeMxFp4(values, kRows, kCols));
  const std::vector<float> best_mxfp4 = Dequantize(QuantizeMxFp4(values, kRows, kCols, kLeastSquares));
  for (size_t i = 0; i < values.size(); i += 16)
    EXPECT_LE(BlockError(values, best_nvfp4, i, 16), BlockError(values, nvfp4, i, 16) * 1.00001);
  for (size_t i = 0; i < values.size(); i += 32)
    EXPECT_LE(BlockError(values, best_mxfp4, i, 32), BlockError(values, mxfp4, i, 32) * 1.00001);
  // Simulated apart from this code: 0.0951 becomes 0.0812, 0.1154 becomes 0.1116.
  EXPECT_NEAR(RelativeRms(values, best_nvfp4), 0.0812, 0.001);
  EXPECT_NEAR(RelativeRms(values, best_mxfp4), 0.1116, 0.001);
}

TEST(Quantize, LeastSquaresFindsTheBestScaleOfItsRange) {
  const std::vector<float> values = Gaussian(16 * 64, 5);
  const QuantizedMatrix chosen = QuantizeNvFp4(values, 64, 16, 0x1p-6F, BlockScaleRule::kLeastSquares);
  const std::vector<float> decoded = Dequantize(chosen);
  const std::vector<uint8_t> nearest = QuantizeNvFp4(values, 64, 16, 0x1p-6F).scale;
  for (size_t row = 0; row < 64; ++row) {
    double least = std::numeric_limits<double>::infinity();
    for (int code = nearest[row] - 2; code <= nearest[row] + 8; ++code) {
      double error = 0;
      const float scale = FloatFromE4m3(static_cast<uint8_t>(code)) * 0x1p-6F;
      for (size_t i = row * 16; i < row * 16 + 16; ++i)
        error += std::pow(values[i] - FloatFromE2m1(E2m1FromFloat(values[i] / scale)) * scale, 2);
      least = std::min(least, error);
    }
    EXPECT_LE(BlockError(values, decoded, row * 16, 16), least * 1.00001) << row;
  }
}

TEST(Quantize, LeastSquaresKeepsWhatIsExactAndSurvivesExtremes) {
  constexpr auto kLeastSquares = BlockScaleRule::kLeastSquares;
  for (const float size : {0x1p-149F, 0x1p-127F, 1.0F, 0x1p120F}) {
    std::vector<float> values(32, size);
    values[5] = 3 * size;
    EXPECT_EQ(Dequantize(QuantizeMxFp4(values, 1, 32, kLeastSquares))[5] == 0.0F, size == 0x1p-149F);
    if (size > 0x1p-127F) {
      EXPECT_EQ(Dequantize(QuantizeMxFp4(values, 1, 32, kLeastSquares)), values);
    }
    for (const float value :
         Dequantize(QuantizeNvFp4(values, 1, 32, NvFp4GlobalScale(3 * size), kLeastSquares)))
      EXPECT_TRUE(std::isfinite(value));
  }
  // A block whose nearest scale is 0 may still be worth the smallest one: 2.9 * 2^-9.
  std::vector<float> faint(16, 2.9F * 0x1p-9F);
  EXPECT_EQ(Dequantize(QuantizeNvFp4(faint, 1, 16, 1.0F))[0], 0.0F);
  EXPECT_EQ(Dequantize(QuantizeNvFp4(faint, 1, 16, 1.0F, kLeastSquares))[0], 3 * 0x1p-9F);
}

TEST(Quantize, RepresentableValuesComeBackExactly) {
  std::vector<float> values;
  for (int row = 0; row < 5; ++row) {
    for (int col = 0; col < 64; ++col) {
      // 6 in every block pins the scale.
      const float code = col % 16 == 3 ? 6.0F : FloatFromE2m1(static_cast<uint8_t>((row + col) % 16));
      values.push_back(code * std::ldexp(1.0F, row - 3 + col / 32));
    }
  }
  EXPECT_EQ(Dequantize(QuantizeMxFp4(values, 5, 64)), values);
  EXPECT_EQ(Dequantize(QuantizeNvFp4(values, 5, 64, 1.0F)), values);
  EXPECT_EQ(Dequantize(QuantizeFp8Block(values, 5, 64, 3, 16)), values);
}

TEST(QuantizeFp8Block, RaggedBlocksHaveTheirOwnScales) {
  std::vector<float> values(5 * 7, 1.0F);
  values[4 * 7 + 6] = 1000.0F;  // The last, 1 x 1 block.
  const QuantizedMatrix matrix = QuantizeFp8Block(values, 5, 7, 4, 3);
  EXPECT_EQ(matrix.scale.size(), 2U * 3U);
  EXPECT_EQ(matrix.scale[5], 127 + 2);  // 1000 / 448 = 2.23
  EXPECT_EQ(matrix.scale[4], 127 - 8);
  const std::vector<float> decoded = Dequantize(matrix);
  for (size_t i = 0; i + 1 < values.size(); ++i) EXPECT_EQ(decoded[i], 1.0F);
  EXPECT_EQ(decoded.back(), 1024.0F);
}

TEST(Quantize, AllZeroMatrixIsZero) {
  const std::vector<float> zeros(64, 0.0F);
  EXPECT_EQ(Dequantize(QuantizeNvFp4(zeros, 2, 32)), zeros);
  EXPECT_EQ(Dequantize(QuantizeMxFp4(zeros, 2, 32)), zeros);
  EXPECT_EQ(Dequantize(QuantizeFp8Block(zeros, 2, 32, 128, 128)), zeros);
}

TEST(RoundToFp8Groups, ScaleIsTheCeiledPowerOfTwo) {
  // max 448 * 2^k gives exactly 2^k; one step more doubles the scale.
  for (int k = -10; k < 10; ++k) {
    const float top = std::ldexp(448.0F, k);
    std::vector<float> in = {top, std::ldexp(1.0625F, k), 0.0F, -top};
    std::vector<float> out(4);
    RoundToFp8Groups(in, 4, out);
    EXPECT_EQ(out[0], top);
    EXPECT_EQ(out[1], std::ldexp(1.0F, k));  // A tie between 1 and 1.125, to even.
    EXPECT_EQ(out[3], -top);
    in[0] = std::nextafter(top, 1e9F);
    RoundToFp8Groups(in, 4, out);
    EXPECT_EQ(out[0], top);
  }
}

TEST(RoundToFp8Groups, GroupsAreIndependentAndMayBeShort) {
  const std::vector<float> in = {1.0F, 2.0F, 3e4F, 1.0F, 1e-6F};
  std::vector<float> out(5);
  RoundToFp8Groups(in, 2, out);
  EXPECT_EQ(out[0], 1.0F);
  EXPECT_EQ(out[1], 2.0F);
  EXPECT_EQ(out[3], 1.0F);  // s = 128: 1/128 is on the subnormal grid.
  // The floor 1e-4 on the maximum: s = 2^-22, 1e-6 / s = 4.19 -> 4.
  EXPECT_EQ(out[4], 4 * 0x1p-22F);
}

TEST(RoundToFp8Groups, ResultIsExactInBf16AndIdempotent) {
  const std::vector<float> in = Gaussian(4096, 7, 30.0F);
  std::vector<float> once(in.size());
  std::vector<float> twice(in.size());
  RoundToFp8Groups(in, 64, once);
  RoundToFp8Groups(once, 64, twice);
  for (size_t i = 0; i < in.size(); ++i) EXPECT_EQ(RoundToBf16(once[i]), once[i]);
  EXPECT_EQ(once, twice);
}

TEST(RoundToFp4Groups, SpecificationRuleAndTies) {
  const std::vector<float> in = {6.0F, 5.0F, 3.5F, 2.5F, 1.75F, 1.25F, 0.75F, 0.25F, -0.25F, -5.0F};
  std::vector<float> out(in.size());
  RoundToFp4Groups(in, 32, out);
  EXPECT_THAT(out, ElementsAre(6, 4, 4, 2, 2, 1, 1, 0, -0.0F, -4));
}

TEST(RoundToFp4Groups, ZeroAndTinyGroupsStayFinite) {
  const std::vector<float> in = {0.0F, 0.0F, 0x1p-149F, 0x1p-130F};
  std::vector<float> out(4, 1.0F);
  RoundToFp4Groups(in, 2, out);
  EXPECT_THAT(out, ElementsAre(0, 0, 0, 0));
}

TEST(RoundToGroups, NaNIsNotHidden) {
  std::vector<float> values(64, 1.0F);
  values[3] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> out(64);
  RoundToFp8Groups(values, 64, out);
  EXPECT_TRUE(std::isnan(out[3]));
  EXPECT_EQ(out[4], 1.0F);
  RoundToFp4Groups(values, 32, out);
  EXPECT_TRUE(std::isnan(out[3]) && std::isnan(out[4]));
  EXPECT_EQ(out[40], 1.0F);
}

}  // namespace
}  // namespace dsv4
