// Intervals, what a schema complains of, and divergences over candidates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "apps/eval/eval_model.h"
#include "apps/eval/intervals.h"
#include "apps/eval/logprob_lines.h"
#include "apps/eval/schema_check.h"

namespace dsv4::apps {
namespace {

using ::testing::HasSubstr;

TEST(Intervals, SharesAreWilsons) {
  const Interval half = ShareInterval(50, 100);
  EXPECT_DOUBLE_EQ(half.value, 0.5);
  EXPECT_NEAR(half.low, 0.4038, 1e-4);
  EXPECT_NEAR(half.high, 0.5962, 1e-4);
  const Interval all = ShareInterval(10, 10);
  EXPECT_NEAR(all.low, 0.7225, 1e-4);
  EXPECT_DOUBLE_EQ(all.high, 1.0);
  EXPECT_TRUE(std::isnan(ShareInterval(0, 0).value));
}

TEST(Intervals, MeansHaveTheWidthOfTheirBlocks) {
  Blocks same;
  Blocks different;
  for (int i = 0; i < 6400; ++i) {
    same.Add(i % 2);            // Every block has the mean 0.5.
    different.Add(i / 64 % 2);  // A block is all 0 or all 1.
  }
  const Interval narrow = MeanInterval(same.blocks());
  EXPECT_DOUBLE_EQ(narrow.value, 0.5);
  EXPECT_DOUBLE_EQ(narrow.low, 0.5);
  const Interval wide = MeanInterval(different.blocks());
  EXPECT_DOUBLE_EQ(wide.value, 0.5);
  // Interval of 100 draws of 0 or 1.
  EXPECT_NEAR(wide.high - wide.low, 2 * 1.96 * 0.5 / std::sqrt(100.0), 0.02);
  Blocks one;
  one.Add(3);
  EXPECT_TRUE(std::isnan(MeanInterval(one.blocks()).low));
}

TEST(SchemaCheck, NamesTheFirstFault) {
  const Json schema = Json::parse(
      R"({"type":"object","properties":{"n":{"type":"integer","minimum":1},"s":{"type":"string","pattern":"^a","maxLength":3},"l":{"type":"array","items":{"$ref":"#/$defs/b"},"maxItems":2},"e":{"enum":[1,"x"]}},
          "required":["n"],"additionalProperties":false,"$defs":{"b":{"anyOf":[{"type":"boolean"},{"const":null}]}}})");
  const auto complaint = [&](const char* value) { return SchemaComplaint(Json::parse(value), schema); };
  EXPECT_EQ(complaint(R"({"n":1,"s":"ab","l":[true,null],"e":"x"})"), "");
  EXPECT_EQ(complaint(R"({"n":1.0})"), "");
  EXPECT_THAT(complaint("{}"), HasSubstr("/n: missing"));
  EXPECT_THAT(complaint(R"({"n":0})"), HasSubstr("/n: below the minimum"));
  EXPECT_THAT(complaint(R"({"n":"1"})"), HasSubstr("/n: got string"));
  EXPECT_THAT(complaint(R"({"n":1,"s":"ba"})"), HasSubstr("/s: does not match"));
  EXPECT_THAT(complaint(R"({"n":1,"s":"aééé"})"), HasSubstr("/s: too long"));
  EXPECT_THAT(complaint(R"({"n":1,"l":[1]})"), HasSubstr("/l/0"));
  EXPECT_THAT(complaint(R"({"n":1,"l":[true,true,true]})"), HasSubstr("too many items"));
  EXPECT_THAT(complaint(R"({"n":1,"e":2})"), HasSubstr("not one of the listed"));
  EXPECT_THAT(complaint(R"({"n":1,"z":2})"), HasSubstr("/z: nothing may stand here"));
  EXPECT_THAT(complaint("3"), HasSubstr("wanted \"object\""));
}

TEST(Rows, ScoresAreLogSoftmax) {
  const std::vector<float> logits = {1.0F, 3.0F, 2.0F, -50.0F};
  const RowScore score = ScoreRow(logits, 2);
  EXPECT_EQ(score.best, 1);
  EXPECT_NEAR(score.logprob, 2 - std::log(std::exp(1) + std::exp(3) + std::exp(2)), 1e-9);
}

TEST(CandidateKl, IsThatOfTheCandidatesAndTheRest) {
  const std::vector<float> logits = {std::log(0.5F), std::log(0.25F), std::log(0.125F), std::log(0.125F)};
  const double log_sum = ScoreRow(logits, 0).log_sum;
  EXPECT_NEAR(CandidateKl({.logprob = {}, .top = {{0, std::log(0.5)}, {1, std::log(0.25)}}}, logits, log_sum),
              0, 1e-6);
  // All of the distribution: the divergence itself.
  const double kl = 0.25 * std::log(0.25 / 0.5) + 0.5 * std::log(0.5 / 0.25);
  EXPECT_NEAR(
      CandidateKl(
          {.logprob = {},
           .top = {{0, std::log(0.25)}, {1, std::log(0.5)}, {2, std::log(0.125)}, {3, std::log(0.125)}}},
          logits, log_sum),
      kl, 1e-6);
  // One candidate and the rest as one: 0.25 against 0.5, 0.75 against 0.5.
  EXPECT_NEAR(CandidateKl({.logprob = {}, .top = {{0, std::log(0.25)}}}, logits, log_sum),
              0.25 * std::log(0.5) + 0.75 * std::log(1.5), 1e-6);
}

}  // namespace
}  // namespace dsv4::apps
