// The sampler check against the real sampler and against paths that lose a penalty.
#include "sampling/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "diag/checks/sampler_check.h"

namespace dsv4::diag {
namespace {

using sampling::Sampler;
using sampling::SamplingParams;

class SamplerCheckTest : public ::testing::Test {
 protected:
  SamplerCheckTest() {
    for (int i = 0; i < 200; ++i) logits_.push_back(std::sin(static_cast<float>(i * i)) * 4.0F);
  }

  // A path like the engine's; `sees_prompt` and `penalties` are what can be wrong with it.
  CheckReport Check(SamplingParams params, bool sees_prompt = true, bool penalties = true, bool bias = true) {
    const SamplerInput input = {.logits = logits_,
                                .prompt = prompt_,
                                .allowed = {},
                                .params = params,
                                .first_token = [&](const SamplingParams& asked) -> Result<int32_t> {
                                  SamplingParams used = asked;
                                  if (!penalties) used.presence_penalty = used.frequency_penalty = 0;
                                  if (!bias) used.logit_bias.clear();
                                  Sampler sampler(used, {}, -1);
                                  if (sees_prompt) sampler.SeePrompt(prompt_);
                                  DSV4_ASSIGN_OR_RETURN(const sampling::SampledToken token,
                                                        sampler.Sample(logits_));
                                  return token.id;
                                }};
    const Result<CheckReport> report = CheckSampler(input);
    EXPECT_TRUE(report.has_value());
    return *report;
  }

  std::vector<float> logits_;
  std::vector<int32_t> prompt_ = {7, 7, 9, 120, 7, 33};
};

TEST_F(SamplerCheckTest, TheRealSamplerPasses) {
  EXPECT_EQ(Check({}).verdict, Verdict::kPass);
  SamplingParams params;
  params.temperature = 0.7F;
  params.top_k = 20;
  params.top_p = 0.9F;
  params.min_p = 0.02F;
  params.repetition_penalty = 1.2F;
  params.presence_penalty = 0.5F;
  params.frequency_penalty = 0.25F;
  params.penalty_window = 3;
  params.logit_bias[5] = 2.0F;
  const CheckReport report = Check(params);
  EXPECT_EQ(report.verdict, Verdict::kPass) << ToText(report);
  EXPECT_EQ(report.tables[1].rows[1][1], "20");  // top-k leaves 20.
  params.temperature = 0;
  EXPECT_EQ(Check(params).verdict, Verdict::kPass);
}

TEST_F(SamplerCheckTest, StagesShowThePenalty) {
  SamplingParams params;
  params.presence_penalty = 1.0F;
  params.frequency_penalty = 0.5F;
  const CheckReport report = Check(params);
  for (const auto& row : report.tables[0].rows) {
    if (row[0] != "7") continue;
    EXPECT_EQ(row[1], "3");
    EXPECT_NEAR(std::stod(row[5]), std::stod(row[4]) - 2.5, 1e-3);
    return;
  }
  FAIL() << "token 7 is not shown";
}

TEST_F(SamplerCheckTest, FindsAPenaltyThatDoesNotSeeThePrompt) {
  const CheckReport report = Check({}, /*sees_prompt=*/false);
  EXPECT_EQ(report.verdict, Verdict::kFinding);
  EXPECT_NE(report.headline.find("penalties do not see the prompt"), std::string::npos) << report.headline;
}

TEST_F(SamplerCheckTest, FindsAPenaltyThatDoesNotReachTheLogits) {
  EXPECT_EQ(Check({}, true, /*penalties=*/false).verdict, Verdict::kFinding);
}

TEST_F(SamplerCheckTest, FindsALostBias) {
  const CheckReport report = Check({}, true, true, /*bias=*/false);
  EXPECT_EQ(report.verdict, Verdict::kFinding);
  EXPECT_NE(report.headline.find("bias"), std::string::npos);
}

TEST_F(SamplerCheckTest, FindsLogitsThatAreNotFinite) {
  logits_[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Check({}).verdict, Verdict::kFinding);
}

TEST_F(SamplerCheckTest, NoPromptIsNotApplicable) {
  prompt_.clear();
  EXPECT_EQ(Check({}).verdict, Verdict::kNotApplicable);
}

}  // namespace
}  // namespace dsv4::diag
