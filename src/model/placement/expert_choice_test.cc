// Tests of the choice of a split: arithmetic of tiers, near ties, slow hosts and links, prompts.
#include "model/placement/expert_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "model/placement/expert_costs_testing.h"

namespace dsv4::model {
namespace {

using ::testing::HasSubstr;

TEST(ExpertChoice, TimesAreBytesByRates) {
  ExpertCosts costs = FlashCosts();
  const double all = 43 * 6 * costs.expert_bytes;
  const ExpertTimes host = TimesOf({.resident = 64, .host = 192}, costs);
  EXPECT_NEAR(host.host, 0.75 * all / 60e9, 1e-9);
  EXPECT_EQ(host.link, 0);
  EXPECT_NEAR(host.both, host.host, 1e-9);
  EXPECT_NEAR(host.prompt, 0.75 * all / 1e12, 1e-12);
  costs.room = 43 * 64;
  const ExpertTimes cached = TimesOf({.cached = 256}, costs);
  EXPECT_NEAR(cached.link, 0.75 * all / 50e9, 1e-9);
  EXPECT_EQ(cached.host, 0);
  EXPECT_NEAR(cached.both, cached.link, 1e-9);
  EXPECT_NEAR(cached.prompt, 43 * 192 * costs.expert_bytes / 50e9 / 8192, 1e-9);
  // Side by side, and a layer waits for the slower of the two.
  const ExpertTimes both = TimesOf({.host = 96, .cached = 160}, costs);
  EXPECT_NEAR(both.host, 0.375 * all / 50e9, 1e-9);
  EXPECT_NEAR(both.link, 0.375 * all / 40e9, 1e-9);
  EXPECT_GT(both.both, std::max(both.host, both.link));
  EXPECT_LT(both.both, both.host + both.link);
}

TEST(ExpertChoice, HostAndLinkShareWhatDoesNotFit) {
  ExpertCosts costs = FlashCosts();
  costs.host_prompt = 1e15;  // Prompts cost nothing there.
  const ExpertChoice choice = ChooseExperts(costs);
  EXPECT_EQ(choice.split.total(), 256);
  EXPECT_GT(choice.split.host, 40);
  EXPECT_GT(choice.split.cached, 100);
  EXPECT_EQ(choice.split.slots, costs.room);
  // Neither alone is as fast.
  EXPECT_LT(choice.times.both, TimesOf({.cached = 256}, costs).both);
  EXPECT_LT(choice.times.both, TimesOf({.resident = 85, .host = 171}, costs).both);
}

TEST(ExpertChoice, CrossingsOfPromptsFollowFromRates) {
  const ExpertCosts costs = FlashCosts();
  // 170.67 tokens choose 4 * 256 times.
  const PromptCrossings alone = CrossingsOf({.cached = 256, .slots = 43 * 64}, costs);
  EXPECT_EQ(alone.streamed_from, 171);
  EXPECT_NEAR(alone.layer, 192 * costs.expert_bytes / 50e9, 1e-9);
  EXPECT_EQ(alone.host_until, 853);  // 256 / 6 * 1000 / 50.
  const PromptCrossings beside = CrossingsOf({.host = 128, .cached = 128, .slots = 43 * 64}, costs);
  EXPECT_NEAR(beside.layer, 64 * costs.expert_bytes / 40e9, 1e-9);
  EXPECT_EQ(beside.host_until, 1066);
  EXPECT_THAT(
      PromptText({.cached = 256, .slots = 43 * 64}, costs),
      HasSubstr("passes of 171 tokens or more bring all cached experts of a layer ahead, 54.4 ms a layer, "
                "2.34 s a pass"));
  EXPECT_THAT(PromptText({.resident = 64, .host = 192}, costs),
              HasSubstr("the host takes 22.45 s for its experts of 8192 tokens"));
}

TEST(ExpertChoice, AHostThatIsSlowWithPromptsMultipliesNone) {
  ExpertCosts costs = FlashCosts();
  costs.host_prompt = 30e9;
  const ExpertChoice choice = ChooseExperts(costs);
  EXPECT_EQ(choice.split, (ExpertSplit{.cached = 256, .slots = costs.room}));
  EXPECT_THAT(Advice(choice), HasSubstr("the link to the GPU bounds it"));
}

// A machine with an H200, 26 layers of Flash and 76 GB. Two experts on the host were chosen for 0.6 % of the
// time, and prompts took three times as long as without them.
TEST(ExpertChoice, ANearTieIsTheOneWithoutTheHost) {
  ExpertCosts costs = FlashCosts();
  costs.num_layers = 26;
  costs.room = 4607;
  costs.pinnable = 1 << 20;
  costs.host = 113.7e9;
  costs.host_beside = 103.0e9;
  costs.host_prompt = 173.4e9;
  costs.link = 55.3e9;
  costs.link_beside = 54.8e9;
  const ExpertSplit none{.cached = 256, .slots = 4607};
  const ExpertSplit two{.host = 2, .cached = 254, .slots = 4607};
  EXPECT_LT(TimesOf(two, costs).judged(), TimesOf(none, costs).judged());
  EXPECT_EQ(ChooseExperts(costs).split, none);
}

TEST(ExpertChoice, ASlowLinkBringsNone) {
  ExpertCosts costs = FlashCosts();
  costs.link = costs.link_beside = 1e9;
  const ExpertChoice choice = ChooseExperts(costs);
  EXPECT_EQ(choice.split, (ExpertSplit{.resident = 85, .host = 171}));
  EXPECT_THAT(Advice(choice), HasSubstr("the host's multiplication bounds it"));
}

TEST(ExpertChoice, WhatCannotBePinnedIsTheHosts) {
  ExpertCosts costs = FlashCosts();
  costs.host_prompt = 30e9;
  costs.pinnable = 43 * 100;
  const ExpertChoice choice = ChooseExperts(costs);
  EXPECT_LE(choice.split.cached, 100);
  EXPECT_GE(choice.split.host, 156);
  costs.pinnable = 0;
  EXPECT_EQ(ChooseExperts(costs).split, (ExpertSplit{.resident = 85, .host = 171}));
}

}  // namespace
}  // namespace dsv4::model
