// The sum of log-probabilities: beside the library's exponential, and in any order.
#include "sampling/log_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace dsv4::sampling {
namespace {

TEST(LogSum, ExponentialsAreThoseOfTheLibraryToALastBitOfDouble) {
  EXPECT_EQ(ExpInSteps(0.0), uint64_t{1} << 63);
  EXPECT_EQ(ExpInSteps(-45.0), 0U);
  EXPECT_EQ(ExpInSteps(std::numeric_limits<double>::quiet_NaN()), 0U);
  std::mt19937_64 random(3);
  for (int i = 0; i < 100000; ++i) {
    const double x = -44.0 * static_cast<double>(random() >> 11) * 0x1p-53;
    const double want = std::exp(x);
    EXPECT_NEAR(static_cast<double>(ExpInSteps(x)) * 0x1p-63, want, want * 0x1p-51 + 0x1p-62) << x;
  }
}

TEST(LogSum, IsTheSameInAnyOrderAndNearTheSumInLongDouble) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0F, 5.0F);
  std::vector<float> logits(129280);
  for (float& logit : logits) logit = normal(random);
  logits[77] = -std::numeric_limits<float>::infinity();
  const LogSum sum = SumOf(logits);
  long double want = 0;
  for (const float logit : logits)
    want += std::exp(static_cast<long double>(logit) - static_cast<long double>(sum.highest));
  EXPECT_NEAR(sum.Log(), static_cast<double>(static_cast<long double>(sum.highest) + std::log(want)), 2e-14);
  std::ranges::shuffle(logits, random);
  EXPECT_EQ(SumOf(logits).high, sum.high);
  EXPECT_EQ(SumOf(logits).low, sum.low);
}

TEST(LogSum, WhatIsNoNumberMakesNoLogprob) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isnan(0.0 - SumOf(std::vector<float>{0.0F, NAN}).Log()));
  EXPECT_TRUE(std::isnan(0.0 - SumOf(std::vector<float>{0.0F, kInfinity}).Log()));
  EXPECT_TRUE(std::isnan(-kInfinity - SumOf(std::vector<float>{-kInfinity}).Log()));
  EXPECT_EQ(-kInfinity - SumOf(std::vector<float>{-kInfinity, 3.0F}).Log(), -kInfinity);
}

}  // namespace
}  // namespace dsv4::sampling
