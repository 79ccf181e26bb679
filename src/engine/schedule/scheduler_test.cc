// Tests of the scheduler: decodes first, limits beside them, short prompts, age, priority and overdue
// prompts.
#include "engine/schedule/scheduler.h"

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
  EXPECT_EQ(Schedule({{1000}, {20}}, {.max_tokens = 24}), "0:12 1:12 ");
  EXPECT_EQ(Schedule({{1000}, {5}}, {.max_tokens = 40}), "0:35 1:5 ");
}

TEST(ScheduleStep, TheShortestGoesFirstAndEarlierOnesOnTies) {
  EXPECT_EQ(Schedule({{90}, {30}, {9}, {9}}, {.max_tokens = 20}), "0:10 2:9 3:1 ");
}

TEST(ScheduleStep, HalfGoesByAge) {
  const Pending old{.num_tokens = 90, .arrival = 1};
  const Pending next{.num_tokens = 90, .arrival = 2};
  const Pending young{.num_tokens = 20, .arrival = 3};
  EXPECT_EQ(Schedule({young, old, next}, {.max_tokens = 20}), "0:10 1:10 ");
  // Tokens that the oldest does not take are for the next.
  const Pending nearly{.num_tokens = 4, .arrival = 0};
  EXPECT_EQ(Schedule({young, old, nearly}, {.max_tokens = 20}), "0:10 1:6 2:4 ");
}

TEST(ScheduleStep, OnceOneIsOverdueAllGoesByAge) {
  const Pending old{.num_tokens = 90, .arrival = 1, .overdue = true};
  const Pending young{.num_tokens = 20, .arrival = 3};
  EXPECT_EQ(Schedule({young, old}, {.max_tokens = 50}), "1:50 ");
}

TEST(ScheduleStep, ALowerPriorityNumberIsReadFirst) {
  const Pending low{.num_tokens = 5, .arrival = 1, .priority = 1, .overdue = true};
  const Pending high{.num_tokens = 30, .arrival = 2, .priority = -1};
  EXPECT_EQ(Schedule({low, high}, {.max_tokens = 20}), "1:20 ");
  EXPECT_EQ(Schedule({low, high}, {.max_tokens = 33}), "0:3 1:30 ");
}

TEST(ScheduleStep, OwnersShareWhatPromptsGet) {
  const auto of = [](uint64_t owner, int64_t tokens, uint64_t arrival) {
    return Pending{.num_tokens = tokens, .arrival = arrival, .owner = owner};
  };
  // Many of one owner, older and shorter, leave another's half alone.
  EXPECT_EQ(Schedule({of(1, 50, 1), of(1, 50, 2), of(1, 50, 3), of(2, 90, 4)}, {.max_tokens = 40}),
            "0:20 3:20 ");
  // An owner that wants little leaves the rest to the others.
  EXPECT_EQ(Schedule({of(1, 50, 1), of(1, 50, 2), of(2, 5, 3)}, {.max_tokens = 40}), "0:35 2:5 ");
  EXPECT_EQ(Schedule({of(1, 50, 1), of(1, 50, 2), of(2, 90, 3), of(3, 4, 4)}, {.max_tokens = 40}),
            "0:18 2:18 3:4 ");
  // An overdue prompt and a low priority number count among their owner's own.
  EXPECT_EQ(Schedule({{.num_tokens = 50, .arrival = 1, .priority = -1, .overdue = true, .owner = 1},
                      of(1, 50, 2),
                      of(2, 90, 3)},
                     {.max_tokens = 40}),
            "0:20 2:20 ");
  // With a prompt each they are as one.
  EXPECT_EQ(Schedule({of(1, 90, 1), of(2, 20, 2), of(3, 90, 3)}, {.max_tokens = 20}), "0:10 1:10 ");
  // More owners than room.
  EXPECT_EQ(Schedule({of(1, 9, 1), of(1, 9, 2), of(2, 9, 3), of(3, 9, 4)}, {.max_tokens = 2}), "2:1 3:1 ");
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
