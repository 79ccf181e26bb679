// Tests of the choice: weights, sums in any order, last tokens, filters at ties, bad logits.
#include "sampling/choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace dsv4::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> RandomLogits(size_t size, uint32_t seed, float sigma = 3.0F) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, sigma);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

TEST(Weight, IsTheExponentialInStepsOf2ToTheMinus35) {
  constexpr double kStep = 0x1p-35;
  EXPECT_EQ(WeightOf(3.0F, 3.0F, 0.1F), 1.0F);
  EXPECT_EQ(WeightOf(-kInfinity, 3.0F, 1.0F), 0.0F);
  EXPECT_EQ(WeightOf(-30.0F, 0.0F, 1.0F), 0.0F) << "less than half a step";
  for (float x = 0.0F; x > -24.0F; x -= 0.00917F) {
    const auto weight = static_cast<double>(WeightOf(x, 0.0F, 1.0F));
    const double exact = std::exp(static_cast<double>(x));
    EXPECT_NEAR(weight, exact, 3e-7 * exact + kStep / 2) << x;
    EXPECT_EQ(weight, std::rint(weight / kStep) * kStep) << x;
  }
}

// Exact sums make a choice the same everywhere.
TEST(Weight, SumsAreTheSameInEveryOrder) {
  std::vector<float> weights;
  for (const float logit : RandomLogits(100000, 1, 6.0F)) weights.push_back(WeightOf(logit, 30.0F, 1.3F));
  const auto sum = [&] {
    double total = 0.0;
    for (const float weight : weights) total += static_cast<double>(weight);
    return total;
  };
  const double forwards = sum();
  std::sort(weights.begin(), weights.end());
  EXPECT_EQ(sum(), forwards);
  std::reverse(weights.begin(), weights.end());
  EXPECT_EQ(sum(), forwards);
}

TEST(Choice, TheLastNumberBelowOneFindsTheLastToken) {
  const double last = std::nextafter(1.0, 0.0);
  for (const size_t size : {1U, 63U, 64U, 65U, 129U, 5000U}) {
    std::vector<float> logits(size, 2.5F);
    EXPECT_EQ(*Choose({.uniform = last}, logits), static_cast<int32_t>(size) - 1) << size;
    std::fill(logits.begin(), logits.end(), 2.5F);
    EXPECT_EQ(*Choose({.uniform = 0.0}, logits), 0);
    if (size == 1) continue;
    std::fill(logits.begin(), logits.end(), 2.5F);
    logits[size - 1] = -kInfinity;
    EXPECT_EQ(*Choose({.uniform = last}, logits), static_cast<int32_t>(size) - 2) << size;
  }
}

// A filter that keeps all changes no draw, since both go through the ids in order.
TEST(Choice, FiltersThatKeepEverythingChangeNothing) {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  const std::vector<float> logits = RandomLogits(3000, 3);
  for (int i = 0; i < 200; ++i) {
    const double number = uniform(random);
    std::vector<float> all = logits;
    std::vector<float> filtered = logits;
    EXPECT_EQ(Choose({.temperature = 1.5F, .uniform = number}, all),
              Choose({.temperature = 1.5F, .top_k = 3000, .min_p = 1e-30F, .uniform = number}, filtered));
  }
}

TEST(Choice, EqualLogitsAtTheEdgeOfAFilterAreKeptByLowestId) {
  const std::vector<float> logits = {1.0F, 2.0F, 1.0F, 2.0F, 1.0F, -0.0F, 0.0F};
  const auto ids = [&](const ChoiceParams& params) {
    std::vector<int32_t> kept;
    for (const WeightedToken& token : Keep(params, logits)) kept.push_back(token.id);
    return kept;
  };
  EXPECT_EQ(ids({.top_k = 3}), (std::vector<int32_t>{1, 3, 0}));
  EXPECT_EQ(ids({.top_k = 6}), (std::vector<int32_t>{1, 3, 0, 2, 4, 5})) << "-0 is as high as 0";
  EXPECT_EQ(ids({.top_p = 0.5F}), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(ids({.min_p = 0.36F}), (std::vector<int32_t>{1, 3, 0, 2, 4}));
}

TEST(Choice, NothingToChooseFromIsSaid) {
  std::vector<float> none(70, -kInfinity);
  EXPECT_FALSE(Choose({}, none).has_value());
  EXPECT_FALSE(Choose({.temperature = 0.0F}, none).has_value());
}

TEST(TakeAllowed, FindsTheFirstBadLogitAlsoWhereNothingMayBeChosen) {
  std::vector<float> logits(200, 1.0F);
  std::vector<float> choices(200);
  const std::vector<uint8_t> none(200, 0);
  EXPECT_EQ(TakeAllowed(logits, none, {}, choices), std::nullopt);
  EXPECT_EQ(choices, std::vector<float>(200, -kInfinity));
  logits[150] = kInfinity;
  logits[170] = std::nanf("");
  EXPECT_EQ(TakeAllowed(logits, none, {}, choices), 150);
  logits[129] = std::nanf("");
  EXPECT_EQ(TakeAllowed(logits, {}, {}, choices), 129);
}

}  // namespace
}  // namespace dsv4::sampling
