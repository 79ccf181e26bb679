// Block scales: whatever a quantiser makes of healthy weights passes, and what none makes is told.
#include "diag/checks/tensors/scale_survey.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "formats/quantize.h"

namespace dsv4::testing {
namespace {

using diag::MeasureScales;
using diag::ScaleComplaint;
using diag::ScaleStatistics;

constexpr int64_t kRows = 64;
constexpr int64_t kCols = 256;

std::vector<float> Make(const std::function<float(std::mt19937&)>& draw) {
  std::mt19937 random(7);
  std::vector<float> values(static_cast<size_t>(kRows * kCols));
  std::generate(values.begin(), values.end(), [&] { return draw(random); });
  return values;
}

float Normal(std::mt19937& random) { return std::normal_distribution<float>(0, 0.02F)(random); }

std::vector<QuantizedMatrix> EveryFormat(std::span<const float> values) {
  std::vector<QuantizedMatrix> made;
  for (const BlockScaleRule rule : {BlockScaleRule::kAmax, BlockScaleRule::kLeastSquares}) {
    made.push_back(QuantizeMxFp4(values, kRows, kCols, rule));
    float largest = 0;
    for (const float value : values) largest = std::max(largest, std::abs(value));
    made.push_back(QuantizeNvFp4(values, kRows, kCols, NvFp4GlobalScale(largest), rule));
  }
  made.push_back(QuantizeFp8Block(values, kRows, kCols, 4, 16));
  return made;
}

std::string Complaint(const QuantizedMatrix& matrix) {
  const Weight weight = matrix.View();
  return ScaleComplaint(weight, MeasureScales(weight));
}

TEST(ScaleComplaintTest, QuantisersOfHealthyWeightsPass) {
  const std::vector<std::pair<std::string, std::vector<float>>> weights = {
      {"normal", Make(Normal)},
      {"even", Make([](std::mt19937& random) {
         return std::uniform_real_distribution<float>(-0.05F, 0.05F)(random);
       })},
      {"heavy tails",
       Make([](std::mt19937& random) { return 1e-3F * std::student_t_distribution<float>(2)(random); })},
      {"one row of outliers, one of nearly nothing",
       [] {
         std::vector<float> values = Make(Normal);
         for (size_t i = 0; i < kCols; ++i) values[i] *= 100;
         for (size_t i = kCols; i < 2 * kCols; ++i) values[i] *= 1e-4F;
         return values;
       }()},
      // Blocks of zeros, whose scale is anybody's choice: QuantizeFp8Block's is 1.
      {"a third of zeros", [] {
         std::vector<float> values = Make(Normal);
         std::fill_n(values.begin(), values.size() / 3, 0.0F);
         return values;
       }()}};
  for (const auto& [name, values] : weights) {
    for (const QuantizedMatrix& matrix : EveryFormat(values)) {
      EXPECT_EQ(Complaint(matrix), "") << name << " " << WeightFormatName(matrix.format);
    }
  }
}

TEST(ScaleComplaintTest, GlobalScalesThatDoNotFit) {
  const std::vector<float> values = Make(Normal);
  const float fitting = QuantizeNvFp4(values, kRows, kCols).global_scale;
  EXPECT_NE(Complaint(QuantizeNvFp4(values, kRows, kCols, fitting / 8)).find("448"), std::string::npos);
  EXPECT_NE(Complaint(QuantizeNvFp4(values, kRows, kCols, fitting * 65536)).find("subnormal"),
            std::string::npos);
  EXPECT_NE(Complaint(QuantizeNvFp4(values, kRows, kCols, fitting * 1e6F)).find("zero"), std::string::npos);
}

TEST(ScaleComplaintTest, OneExponentThatLostABit) {
  const std::vector<float> values = Make(Normal);
  for (QuantizedMatrix matrix :
       {QuantizeMxFp4(values, kRows, kCols), QuantizeFp8Block(values, kRows, kCols, 4, 16)}) {
    matrix.scale[99] ^= 0x80;
    EXPECT_NE(Complaint(matrix).find("damaged?"), std::string::npos) << WeightFormatName(matrix.format);
  }
}

TEST(ScaleComplaintTest, OneExponentThatIsSixTooLarge) {
  QuantizedMatrix matrix = QuantizeMxFp4(Make(Normal), kRows, kCols);
  matrix.scale[99] = static_cast<uint8_t>(matrix.scale[99] + 6);
  EXPECT_NE(Complaint(matrix).find("times the next: was a bit flipped?"), std::string::npos);
}

TEST(ScaleStatisticsTest, AreThoseOfTheBlocks) {
  QuantizedMatrix matrix = QuantizeNvFp4(Make(Normal), kRows, kCols);
  std::fill(matrix.scale.begin(), matrix.scale.end(), 0x38);  // 1.0
  matrix.scale[0] = 0;
  matrix.scale[1] = 0x01;  // 2^-9
  matrix.scale[2] = 0x7E;  // 448
  matrix.global_scale = 0.5F;
  const ScaleStatistics scales = MeasureScales(matrix.View());
  EXPECT_EQ(scales.count, kRows * kCols / kNvFp4Block);
  EXPECT_EQ(scales.num_zero, 1);
  EXPECT_EQ(scales.num_lowest, 1);
  EXPECT_EQ(scales.num_highest, 1);
  EXPECT_EQ(scales.lowest, std::ldexp(1.0, -10));
  EXPECT_EQ(scales.median, 0.5);
  EXPECT_EQ(scales.highest, 224);
  Weight divided = matrix.View();
  divided.global_scale_divides = true;
  EXPECT_EQ(MeasureScales(divided).median, 2);
}

TEST(ScaleSurveyTest, AddsUpByModuleAndLayer) {
  const QuantizedMatrix matrix = QuantizeNvFp4(Make(Normal), kRows, kCols);
  diag::ScaleSurvey survey;
  EXPECT_TRUE(survey.empty());
  for (const int layer : {0, 1, 1})
    survey.Add(layer, "ffn.experts.w1", matrix.View(), MeasureScales(matrix.View()));
  survey.Add(0, "attn.wkv", matrix.View(), MeasureScales(matrix.View()));
  const diag::Table table = survey.ModuleTable();
  ASSERT_EQ(table.rows.size(), 2U);
  EXPECT_EQ(table.rows[1][0], "ffn.experts.w1");
  EXPECT_EQ(table.rows[1][2], "3");
  EXPECT_EQ(table.rows[1][3], std::to_string(3 * kRows * kCols / kNvFp4Block));
  EXPECT_EQ(survey.ExpertPlot().series[0].x, (std::vector<double>{0, 1}));
}

}  // namespace
}  // namespace dsv4::testing
