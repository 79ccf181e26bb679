// The comparator must reject what golden tests exist to find. Each test here is a fault that some comparator
// let through.
#include "tests/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "formats/number_formats.h"

namespace dsv4::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> Ramp(int count) {
  std::vector<float> values;
  for (int i = 0; i < count; ++i) values.push_back(RoundToBf16(static_cast<float>(i - count / 2) * 0.37F));
  return values;
}

float NextBf16(float value, int steps) {
  return FloatFromBf16(static_cast<uint16_t>(Bf16FromFloat(value) + steps));
}

TEST(CompareElements, AcceptsEqualAndClose) {
  const std::vector<float> want = Ramp(9);
  EXPECT_TRUE(CompareElements(want, want, {}).passed);
  std::vector<float> got = want;
  got[8] *= 1.0F + 1e-6F;
  EXPECT_TRUE(CompareElements(got, want, {.absolute = 0, .relative = 1e-5}).passed);
  EXPECT_FALSE(CompareElements(got, want, {.absolute = 0, .relative = 1e-7}).passed);
}

TEST(CompareElements, RejectsFaultsAmongNegativeValues) {
  // A bound of relative * want is negative here: without absolute values every error passes, or none.
  EXPECT_FALSE(
      CompareElements(std::vector<float>{-2}, std::vector<float>{-1}, {.absolute = 0, .relative = 0.1})
          .passed);
  EXPECT_FALSE(
      CompareElements(std::vector<float>{-1}, std::vector<float>{-2}, {.absolute = 0, .relative = 0.1})
          .passed);
  EXPECT_TRUE(
      CompareElements(std::vector<float>{-2.1F}, std::vector<float>{-2}, {.absolute = 0, .relative = 0.1})
          .passed);
}

TEST(CompareElements, RejectsFlippedSigns) {
  std::vector<float> got = Ramp(9);
  got[7] = -got[7];
  EXPECT_FALSE(CompareElements(got, Ramp(9), {.absolute = 1e-3, .relative = 1e-2}).passed);
}

TEST(CompareElements, RejectsMisplacedNonFiniteValues) {
  const ElementBound loose = {.absolute = 1e30, .relative = 1e30};
  const std::vector<float> want = {1, kNan, 2, kInf};
  EXPECT_TRUE(CompareElements(want, want, {}).passed);
  EXPECT_FALSE(CompareElements(std::vector<float>{kNan, 1, 2, kInf}, want, loose).passed);
  EXPECT_FALSE(CompareElements(std::vector<float>{1, 1, 2, kInf}, want, loose).passed);
  EXPECT_FALSE(CompareElements(std::vector<float>{1, kNan, kNan, kInf}, want, loose).passed);
  EXPECT_FALSE(CompareElements(std::vector<float>{1, kNan, 2, -kInf}, want, loose).passed);
  EXPECT_FALSE(CompareElements(std::vector<float>{1, kNan, 2, kNan}, want, loose).passed);
}

TEST(CompareElements, RejectsShiftedAndMissingElements) {
  const std::vector<float> want = Ramp(9);
  std::vector<float> shifted(want.begin() + 1, want.end());
  EXPECT_FALSE(CompareElements(shifted, want, {.absolute = 1e30, .relative = 0}).passed);
  shifted.push_back(want[0]);
  EXPECT_FALSE(CompareElements(shifted, want, {.absolute = 1e-3, .relative = 1e-2}).passed);
  EXPECT_FALSE(CompareElements({}, {}, {}).passed);
}

TEST(CompareElements, NamesTheWorstElement) {
  std::vector<float> got = Ramp(9);
  got[2] += 0.01F;
  got[6] += 0.5F;
  const Comparison comparison = CompareElements(got, Ramp(9), {.absolute = 1e-3, .relative = 0});
  EXPECT_EQ(comparison.worst_index, 6);
  EXPECT_NE(comparison.message.find("element 6"), std::string::npos) << comparison.message;
}

TEST(CompareBf16, AllowsOneStepForFewElements) {
  const std::vector<float> want = Ramp(100);
  std::vector<float> got = want;
  got[3] = NextBf16(got[3], 1);
  EXPECT_TRUE(CompareBf16(got, want, 0.01).passed);
  EXPECT_FALSE(CompareBf16(got, want, 0.001).passed) << "the share of changed elements counts";
  got[3] = NextBf16(want[3], 2);
  EXPECT_FALSE(CompareBf16(got, want, 0.01).passed) << "two steps";
}

TEST(CompareBf16, CountsStepsAcrossZeroAndBinades) {
  // 1 and the value below it are neighbours though their distance is half a step of the binade above.
  EXPECT_TRUE(CompareBf16(std::vector<float>{NextBf16(1.0F, -1)}, std::vector<float>{1.0F}, 1).passed);
  EXPECT_TRUE(CompareBf16(std::vector<float>{-0.0F}, std::vector<float>{0.0F}, 0).passed);
  EXPECT_FALSE(CompareBf16(std::vector<float>{-1.0F}, std::vector<float>{1.0F}, 1).passed);
}

TEST(CompareBf16, RejectsValuesOffTheGrid) {
  EXPECT_FALSE(CompareBf16(std::vector<float>{1.001F}, std::vector<float>{1.0F}, 1).passed)
      << "an unrounded store is a missing rounding point";
}

TEST(CompareBf16, LetsCancelledSumsDiffer) {
  EXPECT_TRUE(CompareBf16(std::vector<float>{1e-9F}, std::vector<float>{-2e-9F}, 1, 1e-8).passed);
  EXPECT_FALSE(CompareBf16(std::vector<float>{1e-7F}, std::vector<float>{-2e-7F}, 1, 1e-8).passed);
}

TEST(RowCosines, SeesSignsNonFiniteValuesAndZeros) {
  const std::vector<float> want = {1, 2, 3, 4, 5, 6};
  EXPECT_NEAR(RowCosines(want, want, 3)[1], 1.0, 1e-15);
  EXPECT_NEAR(RowCosines(std::vector<float>{-1, -2, -3, 4, 5, 6}, want, 3)[0], -1.0, 1e-15);
  EXPECT_EQ(RowCosines(std::vector<float>{1, 2, kNan, 4, 5, 6}, want, 3)[0], -1.0);
  EXPECT_EQ(RowCosines(std::vector<float>{0, 0, 0, 4, 5, 6}, want, 3)[0], -1.0);
  EXPECT_EQ(RowCosines(std::vector<float>{1, 2, kInf, 4, 5, 6}, want, 3)[0], -1.0);
  EXPECT_TRUE(RowCosines(std::vector<float>{1, 2}, want, 3).empty());
}

TEST(CheckCosines, AppliesEveryBound) {
  std::vector<double> cosines(100, 1.0);
  EXPECT_TRUE(CheckCosines(cosines, {.min = 1.0, .median = 1.0, .p5 = 1.0}).passed);
  cosines[40] = 0.5;
  EXPECT_TRUE(CheckCosines(cosines, {.min = 0.4, .median = 1.0, .p5 = 1.0}).passed);
  EXPECT_FALSE(CheckCosines(cosines, {.min = 0.6, .median = 0, .p5 = 0}).passed);
  for (size_t i = 0; i < 10; ++i) cosines[i] = 0.5;
  EXPECT_FALSE(CheckCosines(cosines, {.min = -1, .median = 0, .p5 = 0.9}).passed);
  for (size_t i = 0; i < 60; ++i) cosines[i] = 0.5;
  EXPECT_FALSE(CheckCosines(cosines, {.min = -1, .median = 0.9, .p5 = 0}).passed);
  EXPECT_FALSE(CheckCosines({}, {}).passed);
}

TEST(Percentile, InterpolatesAsNumPy) {
  EXPECT_DOUBLE_EQ(Percentile({4, 1, 3, 2}, 50), 2.5);
  EXPECT_DOUBLE_EQ(Percentile({4, 1, 3, 2}, 5), 1.15);
}

TEST(RoundedSumBound, GrowsWithLengthAndRoundings) {
  const ElementBound bound = RoundedSumBound(Bf16Epsilon(), 2, 1024, 3.0);
  EXPECT_DOUBLE_EQ(bound.relative, std::ldexp(1.0, -7));
  EXPECT_DOUBLE_EQ(bound.absolute, 1024 * std::ldexp(1.0, -24) * 3);
}

}  // namespace
}  // namespace dsv4::testing
