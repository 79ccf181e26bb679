// Memory that slots and states share: by arithmetic, without a GPU.
#include "apps/tiers/slot_trade.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace dsv4::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// 100 slots of 10 bytes, at least 20, and 100 bytes of states that were planned.
SlotTrade Trade() {
  model::MemoryPlan plan{.num_sequences = 2, .context = 40};
  plan.weights = 500;
  plan.expert_cache = 1000;
  plan.slot = 10;
  plan.step = 50;
  plan.sequence = 50;
  plan.per_token = 1;
  return TradeOf(plan, {.cached = 20, .slots = 100}, {.name = "gpu", .free = 1700, .reserved = 50}, 30);
}

TEST(SlotTrade, StatesHaveAllButTheLeastSlots) {
  const SlotTrade trade = Trade();
  EXPECT_TRUE(trade.any());
  EXPECT_EQ(trade.room, 1700 - 50 - 500 - 50);
  EXPECT_EQ(trade.step, 10 + 30);
  EXPECT_EQ(trade.room_for_states(), 1100 - 200);
  EXPECT_EQ(trade.SlotsBeside(0), 100);
  EXPECT_EQ(trade.SlotsBeside(60), 100) << "as planned";
  EXPECT_EQ(trade.SlotsBeside(61), 95) << "one slot less is a part of five less";
  EXPECT_EQ(trade.SlotsBeside(860), 20);
  EXPECT_EQ(trade.SlotsBeside(5000), 20);
  for (int64_t bytes = 0; bytes <= 860; ++bytes)
    EXPECT_LE(trade.SlotsBeside(bytes) * 10 + bytes + trade.step, trade.room) << bytes;
  model::MemoryPlan plan;
  plan.expert_cache = 1000;
  EXPECT_EQ(WithLeastSlots(plan, trade).expert_cache, 200);
  EXPECT_FALSE(TradeOf(plan, {.resident = 4}, {}, 1).any());
}

TEST(SlotTrade, FewerAtOnceAndMoreAfterAWhile) {
  std::vector<int64_t> set;
  Status answer;
  SlotTrader trader(Trade(), [&](int64_t slots) {
    set.push_back(slots);
    return answer;
  });
  trader.OnStep(10);
  EXPECT_THAT(set, IsEmpty());
  trader.OnStep(300);
  trader.OnStep(860);
  EXPECT_THAT(set, ElementsAre(75, 20));
  for (int i = 1; i < SlotTrader::kStepsBeforeMore; ++i) trader.OnStep(0);
  trader.OnStep(860);
  EXPECT_THAT(set, ElementsAre(75, 20)) << "the room was gone again";
  for (int i = 0; i < SlotTrader::kStepsBeforeMore; ++i) trader.OnStep(0);
  EXPECT_THAT(set, ElementsAre(75, 20, 100));
  answer = ResourceExhausted("none");
  trader.OnStep(860);
  EXPECT_EQ(trader.slots(), 100) << "as many as before";
}

}  // namespace
}  // namespace dsv4::apps
