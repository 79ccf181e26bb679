#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <string>

namespace dsv4::engine {
namespace {

std::string Schedule(const std::vector<Pending>& pending, StepBudget budget) {
  std::string text;
  for (const ScheduledChunk& chunk : ScheduleStep(pending, budget)) {
    text += std::to_string(chunk.sequence) + ":" + std::to_string(chunk.num_tokens) + " ";
  }
  return text;
}

TEST(ScheduleStep, DecodesComeBeforePrefills) {
  EXPECT_EQ(Schedule({{100}, {1}, {1}}, {.max_tokens = 10}), "1:1 2:1 0:8 ");
}

TEST(ScheduleStep, APrefillBesideDecodesHasItsOwnLimit) {
  EXPECT_EQ(Schedule({{100}, {1}}, {.max_tokens = 50, .max_prefill_beside_decode = 7}), "1:1 0:7 ");
  EXPECT_EQ(Schedule({{100}}, {.max_tokens = 50, .max_prefill_beside_decode = 7}), "0:50 ");
}

TEST(ScheduleStep, AShortPromptPassesALongOneWhichStillMoves) {
  EXPECT_EQ(Schedule({{1000}, {20}}, {.max_tokens = 24}), "0:6 1:18 ");
  EXPECT_EQ(Schedule({{1000}, {20}}, {.max_tokens = 40}), "0:20 1:20 ");
}

TEST(ScheduleStep, TheShortestGoesFirstAndEarlierOnesOnTies) {
  EXPECT_EQ(Schedule({{90}, {30}, {9}, {9}}, {.max_tokens = 20}), "0:5 2:9 3:6 ");
}

TEST(ScheduleStep, AChunkEndsWhereItsStateIsWanted) {
  EXPECT_EQ(Schedule({{100, 30}, {40}}, {.max_tokens = 100}), "0:30 1:40 ");
}

TEST(ScheduleStep, MoreDecodesThanRoomAreCutNotStarvedForEver) {
  EXPECT_EQ(Schedule({{1}, {1}, {1}}, {.max_tokens = 2}), "0:1 1:1 ");
}

TEST(ScheduleStep, NothingPendingNothingScheduled) {
  EXPECT_EQ(Schedule({}, {.max_tokens = 10}), "");
  EXPECT_EQ(Schedule({{0}}, {.max_tokens = 10}), "");
}

TEST(ScheduleStep, AZeroBudgetStillMakesProgress) { EXPECT_EQ(Schedule({{5}}, {.max_tokens = 0}), "0:1 "); }

}  // namespace
}  // namespace dsv4::engine
