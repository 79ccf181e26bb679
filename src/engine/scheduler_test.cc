#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <string>

namespace dsv4::engine {
namespace {

std::string Schedule(const std::vector<Pending>& pending, int64_t max_step_tokens) {
  std::string text;
  for (const ScheduledChunk& chunk : ScheduleStep(pending, max_step_tokens)) {
    text += std::to_string(chunk.sequence) + ":" + std::to_string(chunk.num_tokens) + " ";
  }
  return text;
}

TEST(ScheduleStep, DecodesComeBeforePrefills) { EXPECT_EQ(Schedule({{100}, {1}, {1}}, 10), "1:1 2:1 0:8 "); }

TEST(ScheduleStep, PrefillsShareTheRestInOrderOfArrival) {
  EXPECT_EQ(Schedule({{3}, {20}, {5}}, 10), "0:3 1:7 ");
}

TEST(ScheduleStep, MoreDecodesThanRoomAreCutNotStarvedForEver) {
  EXPECT_EQ(Schedule({{1}, {1}, {1}}, 2), "0:1 1:1 ");
}

TEST(ScheduleStep, NothingPendingNothingScheduled) {
  EXPECT_EQ(Schedule({}, 10), "");
  EXPECT_EQ(Schedule({{0}}, 10), "");
}

TEST(ScheduleStep, AZeroBudgetStillMakesProgress) { EXPECT_EQ(Schedule({{5}}, 0), "0:1 "); }

}  // namespace
}  // namespace dsv4::engine
