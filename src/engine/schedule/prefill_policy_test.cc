// Prices of steps, and the prompt tokens that follow from them.
#include "engine/schedule/prefill_policy.h"

#include <gtest/gtest.h>

#include <random>

namespace dsv4::engine {
namespace {

// A machine whose steps have a fixed part of 20 ms with prompts, and then 0.02 ms a token.
void Teach(PrefillPolicy& policy, double scale = 1.0) {
  for (int i = 0; i < 3; ++i) {
    for (const int64_t rows : {1, 16, 64})
      policy.RecordStep(rows, 0, scale * (2e-3 + 1e-4 * static_cast<double>(rows)));
    for (int64_t rows = 128; rows <= 8192; rows *= 2)
      policy.RecordStep(0, rows, scale * (20e-3 + 2e-5 * static_cast<double>(rows)));
  }
}

PrefillPolicy Taught(PrefillLimits limits) {
  limits.max_step_tokens = 8192;
  PrefillPolicy policy(limits);
  Teach(policy);
  return policy;
}

TEST(PriceCurve, LiesBetweenWhatWasSeenAndInProportionBeyond) {
  PriceCurve curve;
  EXPECT_EQ(curve.At(10), 0.0);
  curve.Saw(100, 0.1);
  curve.Saw(200, 0.3);
  EXPECT_NEAR(curve.At(150), 0.2, 1e-9);
  EXPECT_NEAR(curve.At(400), 0.6, 1e-9);
  EXPECT_NEAR(curve.At(10), 0.1, 1e-9);
  // Fewer rows take no longer than more rows.
  curve.Saw(1000, 0.25);
  EXPECT_NEAR(curve.At(200), 0.25, 1e-9);
}

TEST(PriceCurve, AStepThatWasHeldUpSaysLittleAndASlowerMachineIsNoticed) {
  PriceCurve curve;
  for (int i = 0; i < 20; ++i) curve.Saw(100, 0.1);
  curve.Saw(100, 10.0);
  EXPECT_LT(curve.At(100), 0.13);
  for (int i = 0; i < 40; ++i) curve.Saw(100, 0.2);
  EXPECT_NEAR(curve.At(100), 0.2, 0.01);
  // The first of a size pays for memory.
  PriceCurve cold;
  cold.Saw(100, 5.0);
  cold.Saw(100, 0.1);
  EXPECT_NEAR(cold.At(100), 0.1, 1e-9);
}

TEST(PriceCurve, WhatIsNoPriceIsNotLearnt) {
  PriceCurve curve;
  curve.Saw(0, 1.0);
  curve.Saw(10, 0.0);
  curve.Saw(10, -1.0);
  EXPECT_TRUE(curve.empty());
  curve.Saw(int64_t{1} << 40, 1.0);
  EXPECT_GT(curve.At(int64_t{1} << 40), 0.0);
}

TEST(StepPrices, AStepWithPromptsTakesNoLessThanItsAnswers) {
  StepPrices prices;
  prices.RecordStep(64, 0, 0.05);
  prices.RecordStep(0, 128, 0.03);
  EXPECT_NEAR(prices.Mixed(64, 64), 0.05, 1e-9);
  EXPECT_NEAR(prices.Decode(1000), 0.05, 1e-9);  // Not proportionally more: it is to be seen.
}

TEST(PrefillPolicy, APieceReadsNearlyAsFastAsAnyWithinTheAim) {
  const PrefillPolicy policy = Taught({.max_gap = 0.1});
  const int64_t within = *policy.PieceWithin(16, 0.1);
  EXPECT_NEAR(static_cast<double>(within), 4000 - 16, 40);
  const int64_t piece = policy.EconomicalPiece(16);
  EXPECT_LT(piece, within);
  const auto rate = [&](int64_t tokens) {
    return static_cast<double>(tokens) / policy.prices().Mixed(16, tokens);
  };
  EXPECT_GE(rate(piece), 0.85 * rate(within));
  EXPECT_EQ(policy.Piece({.answering = 16, .tokens = 100000, .num_prompts = 2}), piece);
  // Pieces are as large as the target allows. Cases: a backlog, an overdue prompt, more prompts than answers,
  // a rest that would be a step of its own.
  EXPECT_EQ(policy.Piece({.answering = 16, .tokens = 100000, .num_prompts = 2, .longest_wait = 1.0}), within);
  EXPECT_EQ(policy.Piece({.answering = 16, .tokens = 100000, .num_prompts = 2, .overdue = true}), within);
  EXPECT_EQ(policy.Piece({.answering = 16, .tokens = 100000, .num_prompts = 17}), within);
  EXPECT_EQ(policy.Piece({.answering = 16, .tokens = piece + 10, .num_prompts = 2}), within);
}

TEST(PrefillPolicy, BesideOthersAStepIsShortWhereThatCostsLittle) {
  // With a fixed part a piece has to be large; without one the first will do. A step has room for no more.
  const PrefillPolicy policy = Taught({});
  const int64_t piece = policy.PieceBesideOthers();
  EXPECT_GT(piece, 1500);
  EXPECT_LT(piece, 8192);
  PrefillPolicy host({.max_step_tokens = 512});
  EXPECT_EQ(host.PieceBesideOthers(), 512);
  for (int i = 0; i < 3; ++i) {
    for (const int64_t rows : {13, 30, 512}) host.RecordStep(0, rows, 1e-3 * static_cast<double>(rows));
  }
  EXPECT_EQ(host.PieceBesideOthers(), PrefillPolicy::kFirstPiece);
  PrefillPolicy small({.max_step_tokens = 32});
  Teach(small);
  EXPECT_EQ(small.PieceBesideOthers(), 32);
}

TEST(PrefillPolicy, SlowAnswersStretchAnAimAndNoBound) {
  PrefillPolicy aim({.max_step_tokens = 8192, .max_gap = 0.01});
  Teach(aim);
  EXPECT_GT(aim.Gap(64), 0.02);
  EXPECT_GT(aim.EconomicalPiece(64), 100);
  PrefillPolicy bound({.max_step_tokens = 8192, .max_gap = 0.01, .gap_is_bound = true});
  Teach(bound);
  EXPECT_EQ(bound.Gap(64), 0.01);
  EXPECT_EQ(bound.Piece({.answering = 64, .tokens = 1000, .num_prompts = 1}), PrefillPolicy::kLeastPiece);
}

TEST(PrefillPolicy, ANumberThatWasAskedForIsKept) {
  const PrefillPolicy policy = Taught({.max_beside_decode = 300, .max_gap = 0.1, .gap_is_bound = true});
  EXPECT_EQ(policy.Piece({.answering = 16, .tokens = 100000, .num_prompts = 20}), 300);
  EXPECT_GT(policy.Piece({.answering = 16, .tokens = 100000, .num_prompts = 20, .overdue = true}), 3000);
  EXPECT_FALSE(policy.Holds({.answering = 16, .tokens = 10, .num_prompts = 1}));
  const PrefillPolicy unknown({.max_step_tokens = 8192, .max_beside_decode = 300});
  EXPECT_EQ(unknown.Piece({.answering = 16, .tokens = 100000, .num_prompts = 1}), 300);
}

TEST(PrefillPolicy, PromptsWaitForOthersAsLongAsTheyWouldHoldAnswersUp) {
  const PrefillPolicy policy = Taught({.max_gap = 0.1});
  const PromptLoad one{
      .answering = 16, .tokens = 100, .num_prompts = 1, .waited = 0.01, .longest_wait = 0.01};
  EXPECT_TRUE(policy.Holds(one));
  PromptLoad load = one;
  load.answering = 0;
  EXPECT_FALSE(policy.Holds(load));
  load = one;
  load.overdue = true;
  EXPECT_FALSE(policy.Holds(load));
  load = one;
  load.longest_wait = 0.11;
  EXPECT_FALSE(policy.Holds(load));
  load = one;
  load.tokens = 5000;
  EXPECT_FALSE(policy.Holds(load));
  load = one;
  load.answering = 1;
  load.waited = load.longest_wait = 0.03;
  EXPECT_FALSE(policy.Holds(load));  // One answer loses less than that.
}

TEST(PrefillPolicy, NothingIsHeldWhereAllRowsCostTheSame) {
  for (const double gap : {0.0, 0.1}) {
    PrefillPolicy policy({.max_step_tokens = 512, .max_gap = gap});
    for (int i = 0; i < 3; ++i) {
      for (const int64_t rows : {1, 16, 64}) policy.RecordStep(rows, 0, 3e-4 * static_cast<double>(rows));
      for (int64_t rows = 8; rows <= 512; rows *= 2)
        policy.RecordStep(0, rows, 3e-4 * static_cast<double>(rows));
    }
    EXPECT_FALSE(policy.Holds({.answering = 16, .tokens = 20, .num_prompts = 1}));
    EXPECT_LT(policy.EconomicalPiece(16), 120);
  }
}

TEST(PrefillPolicy, BeginsWithTheFirstPieceAndTriesLargerOnesWithinTheAim) {
  PrefillPolicy policy({.max_step_tokens = 8192, .max_gap = 0.1});
  const PromptLoad load{.answering = 16, .tokens = 100000, .num_prompts = 2};
  EXPECT_EQ(policy.Piece(load), PrefillPolicy::kFirstPiece);
  const auto seconds = [](int64_t rows) { return 20e-3 + 2e-5 * static_cast<double>(rows); };
  double longest = 0.0;
  for (int i = 0; i < 12; ++i) {
    const int64_t piece = policy.Piece(load);
    longest = std::max(longest, seconds(16 + piece));
    policy.RecordStep(16, piece, seconds(16 + piece));
    policy.RecordStep(16, 0, 3.6e-3);
  }
  EXPECT_LE(longest, 0.101);
  EXPECT_GT(policy.EconomicalPiece(16), 1500);
}

TEST(PrefillPolicy, StaysWithinTheStepWhateverItHasSeen) {
  std::minstd_rand random(7);
  for (int round = 0; round < 200; ++round) {
    const auto most = static_cast<int64_t>(1 + random() % 4096);
    PrefillPolicy policy({.max_step_tokens = most, .max_gap = round % 2 == 0 ? 0.1 : 0.0});
    for (int i = 0; i < 50; ++i) {
      policy.RecordStep(static_cast<int64_t>(random() % 300), static_cast<int64_t>(random() % 9000),
                        static_cast<double>(random() % 100000) * 1e-5);
      const PromptLoad load{.answering = static_cast<int64_t>(random() % 400),
                            .tokens = static_cast<int64_t>(1 + random() % 50000),
                            .num_prompts = static_cast<int64_t>(1 + random() % 100),
                            .waited = static_cast<double>(random() % 100) * 0.01,
                            .longest_wait = static_cast<double>(random() % 100) * 0.001,
                            .overdue = random() % 5 == 0};
      const int64_t piece = policy.Piece(load);
      EXPECT_GE(piece, 1);
      EXPECT_LE(piece, std::max<int64_t>(most - load.answering, 1));
      (void)policy.Holds(load);
    }
  }
}

}  // namespace
}  // namespace dsv4::engine
