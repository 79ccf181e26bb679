// Tests of the sampler: greedy ties, penalties and their window, filters, seeds and log-probabilities.
#include "sampling/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace dsv4::sampling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SamplingParams Greedy() {
  SamplingParams params;
  params.temperature = 0.0F;
  return params;
}

int32_t SampleOnce(const SamplingParams& params, const std::vector<float>& logits,
                   const std::vector<int32_t>& prompt = {}) {
  Sampler sampler(params, {}, -1);
  sampler.SeePrompt(prompt);
  return sampler.Sample(logits)->id;
}

std::vector<int32_t> Ids(const std::vector<Candidate>& candidates) {
  std::vector<int32_t> ids;
  for (const Candidate& candidate : candidates) ids.push_back(candidate.id);
  return ids;
}

TEST(Greedy, TakesTheHighestAndTheLowestIdOnTies) {
  EXPECT_EQ(SampleOnce(Greedy(), {0.0F, 3.0F, 1.0F, 3.0F}), 1);
  EXPECT_EQ(SampleOnce(Greedy(), {-5.0F, -5.0F}), 0);
}

TEST(Greedy, FindsTheHighestAtEveryPlace) {
  for (size_t i = 0; i < 200; ++i) {
    std::vector<float> logits(200, -3.0F);
    logits[i] = logits[199] = -1.0F;
    ASSERT_EQ(SampleOnce(Greedy(), logits), static_cast<int32_t>(i));
  }
}

TEST(Greedy, IgnoresSeedAndFilters) {
  SamplingParams params = Greedy();
  params.seed = 99;
  params.top_k = 1;
  params.min_p = 0.9F;
  EXPECT_EQ(SampleOnce(params, {0.0F, 1.0F, 2.0F}), 2);
}

TEST(LogitBias, ReachesTheChoice) {
  SamplingParams params = Greedy();
  params.logit_bias = {{0, 5.0F}};
  EXPECT_EQ(SampleOnce(params, {0.0F, 3.0F}), 0);
}

TEST(Penalties, SeeThePromptAndTheOutput) {
  SamplingParams params = Greedy();
  params.repetition_penalty = 4.0F;
  EXPECT_EQ(SampleOnce(params, {2.0F, 1.0F}), 0);
  EXPECT_EQ(SampleOnce(params, {2.0F, 1.0F}, {0}), 1) << "a prompt token must be penalised";
  Sampler sampler(params, {}, -1);
  const std::vector<float> logits = {2.0F, 1.0F, 0.9F};
  EXPECT_EQ(sampler.Sample(logits)->id, 0);
  EXPECT_EQ(sampler.Sample(logits)->id, 1) << "an output token must be penalised";
}

TEST(Penalties, NegativeLogitsMoveDownToo) {
  SamplingParams params = Greedy();
  params.repetition_penalty = 2.0F;
  EXPECT_EQ(SampleOnce(params, {-1.0F, -1.5F}, {0}), 1);
}

TEST(Penalties, PresenceCountsOnceFrequencyEveryTime) {
  std::vector<float> logits = {10.0F, 10.0F, 10.0F};
  SamplingParams params;
  params.presence_penalty = 1.0F;
  params.frequency_penalty = 0.5F;
  PenaltyWindow seen(0);
  for (const int32_t token : {1, 2, 2, 2}) seen.Add(token);
  ApplyPenalties(params, seen, logits);
  EXPECT_THAT(logits, ElementsAre(10.0F, 8.5F, 7.5F));
}

TEST(Penalties, ForgetWhatLeftTheWindow) {
  PenaltyWindow seen(2);
  for (const int32_t token : {7, 8, 9}) seen.Add(token);
  EXPECT_EQ(seen.counts().count(7), 0U);
  EXPECT_EQ(seen.counts().at(8), 1);
  SamplingParams params = Greedy();
  params.repetition_penalty = 4.0F;
  params.penalty_window = 1;
  EXPECT_EQ(SampleOnce(params, {2.0F, 1.0F}, {0, 1}), 0);
}

TEST(Penalties, BreakALoopThatGreedyDecodingCannotLeave) {
  // A model that always prefers the token it just gave: P3 of the field lessons.
  SamplingParams params = Greedy();
  params.repetition_penalty = 1.3F;
  Sampler plain(Greedy(), {}, -1);
  Sampler penalised(params, {}, -1);
  const std::vector<float> logits = {1.2F, 1.0F, 0.95F};
  std::vector<int32_t> loop, broken;
  for (int i = 0; i < 3; ++i) {
    loop.push_back(plain.Sample(logits)->id);
    broken.push_back(penalised.Sample(logits)->id);
  }
  EXPECT_THAT(loop, ElementsAre(0, 0, 0));
  EXPECT_THAT(broken, ElementsAre(0, 1, 2));
}

TEST(Filters, TopKTopPAndMinPKeepWhatTheySay) {
  const std::vector<float> logits = {std::log(0.1F), std::log(0.4F), std::log(0.2F), std::log(0.3F)};
  SamplingParams params;
  EXPECT_THAT(Ids(FilterCandidates(params, logits)), ElementsAre(1, 3, 2, 0));
  params.top_k = 3;
  EXPECT_THAT(Ids(FilterCandidates(params, logits)), ElementsAre(1, 3, 2));
  params.top_k = 0;
  params.top_p = 0.65F;
  EXPECT_THAT(Ids(FilterCandidates(params, logits)), ElementsAre(1, 3));
  params.top_p = 1e-6F;
  EXPECT_THAT(Ids(FilterCandidates(params, logits)), ElementsAre(1)) << "one candidate always stays";
  params.top_p = 1.0F;
  params.min_p = 0.6F;
  EXPECT_THAT(Ids(FilterCandidates(params, logits)), ElementsAre(1, 3));
}

TEST(Filters, ProbabilitiesAreRenormalisedAndFollowTheTemperature) {
  const std::vector<float> logits = {0.0F, 1.0F, 2.0F};
  SamplingParams params;
  params.temperature = 0.5F;
  params.top_k = 2;
  const auto candidates = FilterCandidates(params, logits);
  const float expected = 1.0F / (1.0F + std::exp(-2.0F));
  EXPECT_NEAR(candidates[0].probability, expected, 1e-6F);
  EXPECT_NEAR(candidates[0].probability + candidates[1].probability, 1.0F, 1e-6F);
}

TEST(Draw, FollowsTheDistribution) {
  const std::vector<double> probabilities = {0.5, 0.3, 0.15, 0.05};
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  std::vector<int> counts(4);
  constexpr int kDraws = 20000;
  SamplingParams params;
  params.seed = 7;
  params.penalty_window = 1;
  Sampler sampler(params, {}, -1);
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(sampler.Sample(logits)->id)];
  double chi_squared = 0.0;
  for (size_t i = 0; i < 4; ++i) {
    const double expected = probabilities[i] * kDraws;
    chi_squared += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(chi_squared, 16.3);  // 3 degrees of freedom, p = 0.001.
}

// Logits like a language model's: a few tokens far above many.
std::vector<float> RandomLogits(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 3.0F);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = normal(random);
  for (int i = 0; i < 5; ++i) logits[random() % size] += 10.0F;
  return logits;
}

TEST(Draw, OfAWholeVocabularyTakesTheTokenThatTheNumberFallsOn) {
  // Sizes around the blocks that the loops go in.
  for (const size_t size : {1U, 63U, 64U, 65U, 5000U}) {
    std::vector<float> logits = RandomLogits(size, 11);
    if (size > 10) logits[3] = -std::numeric_limits<float>::infinity();
    SamplingParams params;
    params.temperature = 1.7F;
    params.seed = 5;
    std::vector<double> ends;  // Token i is drawn by the numbers from ends[i - 1] to ends[i].
    const double highest = *std::max_element(logits.begin(), logits.end());
    for (const float logit : logits) {
      ends.push_back((ends.empty() ? 0.0 : ends.back()) + std::exp((logit - highest) / params.temperature));
    }
    Sampler sampler(params, {}, -1);
    for (uint64_t i = 0; i < 500; ++i) {
      const auto id = static_cast<size_t>(sampler.Sample(logits)->id);
      const double number = UniformDraw(params.seed, i);
      // A weight is off by 3e-7 of itself, so all ends are off by less than this.
      constexpr double kSlack = 1e-6;
      EXPECT_LE(number, ends[id] / ends.back() + kSlack) << size << " " << i;
      EXPECT_GE(number, (id == 0 ? 0.0 : ends[id - 1]) / ends.back() - kSlack) << size << " " << i;
      EXPECT_TRUE(std::isfinite(logits[id]));
    }
  }
}

TEST(Filters, OfAWholeVocabularyAreThoseOfTheSortedOne) {
  const std::vector<float> logits = RandomLogits(3000, 4);
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  SamplingParams params;
  EXPECT_EQ(Ids(FilterCandidates(params, logits)), ids);
  // Shares of the probability that take one token, tens, and hundreds.
  for (const float top_p : {0.3F, 0.9F, 0.9999F}) {
    for (const int top_k : {0, 1, 70, 2999}) {
      params.top_p = top_p;
      params.top_k = top_k;
      const size_t most = top_k > 0 ? static_cast<size_t>(top_k) : ids.size();
      std::vector<double> sums = {0.0};
      for (size_t i = 0; i < most; ++i)
        sums.push_back(sums.back() + std::exp(static_cast<double>(logits[static_cast<size_t>(ids[i])])));
      size_t kept = 0;
      while (kept < most && sums[kept] < top_p * sums.back()) ++kept;
      const std::vector<int32_t> want(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(kept));
      EXPECT_EQ(Ids(FilterCandidates(params, logits)), want) << "top_p " << top_p << " top_k " << top_k;
    }
  }
}

TEST(Draw, DependsOnSeedAndIndexOnly) {
  EXPECT_EQ(UniformDraw(3, 5), UniformDraw(3, 5));
  EXPECT_NE(UniformDraw(3, 5), UniformDraw(3, 6));
  EXPECT_NE(UniformDraw(3, 5), UniformDraw(4, 5));
  double sum = 0.0;
  for (uint64_t i = 0; i < 10000; ++i) {
    const double draw = UniformDraw(1, i);
    ASSERT_TRUE(draw >= 0.0 && draw < 1.0);
    sum += draw;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.02);
}

TEST(Sampler, NeverChoosesAnIdWithoutAString) {
  const std::vector<uint8_t> allowed = {1, 0, 1};
  Sampler sampler(Greedy(), allowed, -1);
  EXPECT_EQ(sampler.Sample(std::vector<float>{0.0F, 9.0F, 1.0F})->id, 2);
}

TEST(Sampler, ChoosesOnlyWhatIsPermittedAndHasAString) {
  // Permitted: 70 and 129, and past the last word nothing. 129 has no string.
  const std::vector<float> logits(200, 1.0F);
  const std::vector<uint64_t> permitted = {0, 1U << 6, 1U << 1};
  std::vector<uint8_t> allowed(200, 1);
  EXPECT_EQ(Sampler(Greedy(), allowed, -1).Sample(logits, permitted)->id, 70);
  allowed[70] = 0;
  EXPECT_EQ(Sampler(Greedy(), allowed, -1).Sample(logits, permitted)->id, 129);
  allowed[129] = 0;
  EXPECT_FALSE(Sampler(Greedy(), allowed, -1).Sample(logits, permitted).has_value());
}

TEST(Sampler, LogprobsAreTheModelsOwn) {
  SamplingParams params = Greedy();
  params.logit_bias = {{0, 100.0F}};
  Sampler sampler(params, {}, 2);
  const auto token = sampler.Sample(std::vector<float>{0.0F, std::log(3.0F)});
  EXPECT_EQ(token->id, 0);
  EXPECT_NEAR(token->logprob, std::log(0.25F), 1e-6F);
  EXPECT_EQ(token->top[0].id, 1);
  EXPECT_NEAR(token->top[0].logprob, std::log(0.75F), 1e-6F);
}

TEST(Sampler, NanAndAllInfiniteLogitsAreErrorsThatSayWhere) {
  Sampler sampler(Greedy(), {}, -1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_THAT(sampler.Sample(std::vector<float>{0.0F, nan}).error().message(), HasSubstr("token 1 is NaN"));
  EXPECT_THAT(sampler.Sample(std::vector<float>{0.0F, 0.0F, inf}).error().message(),
              HasSubstr("token 2 is infinite"));
  EXPECT_THAT(sampler.Sample(std::vector<float>{-inf, -inf}).error().message(),
              HasSubstr("no token has a finite logit"));
}

TEST(SamplingParams, EachBadFieldIsNamed) {
  const auto message = [](auto change) {
    SamplingParams params;
    change(params);
    return ValidateSamplingParams(params, 10).message();
  };
  EXPECT_THAT(message([](auto& p) { p.temperature = -1.0F; }), HasSubstr("temperature"));
  EXPECT_THAT(message([](auto& p) { p.top_k = -1; }), HasSubstr("top_k"));
  EXPECT_THAT(message([](auto& p) { p.top_p = 0.0F; }), HasSubstr("top_p"));
  EXPECT_THAT(message([](auto& p) { p.min_p = 1.0F; }), HasSubstr("min_p"));
  EXPECT_THAT(message([](auto& p) { p.repetition_penalty = 0.0F; }), HasSubstr("repetition_penalty"));
  EXPECT_THAT(message([](auto& p) { p.presence_penalty = INFINITY; }), HasSubstr("presence_penalty"));
  EXPECT_THAT(message([](auto& p) { p.frequency_penalty = NAN; }), HasSubstr("frequency_penalty"));
  EXPECT_THAT(message([](auto& p) { p.penalty_window = -1; }), HasSubstr("penalty_window"));
  EXPECT_THAT(message([](auto& p) { p.logit_bias = {{10, 1.0F}}; }), HasSubstr("token id 10"));
  EXPECT_TRUE(ValidateSamplingParams(SamplingParams(), 10).ok());
}

}  // namespace
}  // namespace dsv4::sampling
