// SlotTrade: memory of a GPU that slots of cached experts and states of sequences share while a server runs
// (docs/expert-tiers.md). States have what they want, down to the least number of slots; slots have the rest.
#pragma once

#include <cstdint>
#include <functional>

#include "base/status.h"
#include "model/planning/memory_plan.h"

namespace dsv4::apps {

struct SlotTrade {
  int64_t slot_bytes = 0;  // 0: nothing is traded.
  int64_t least = 0;       // Slots: what a layer's cached experts take, so that prompts go on as they do.
  int64_t most = 0;        // Slots that were planned.
  int64_t room = 0;        // Bytes of slots and states together.
  int64_t step = 0;        // Bytes that a step may add to states.

  bool any() const { return slot_bytes > 0 && most > least; }
  int64_t room_for_states() const { return room - least * slot_bytes; }
  // Slots that there is room for beside so many bytes of states, in steps of a sixteenth.
  int64_t SlotsBeside(int64_t state_bytes) const;
};

// Trade for a model with `split` as the plan has it. A step of at most `step_tokens` tokens.
SlotTrade TradeOf(const model::MemoryPlan& plan, const model::ExpertSplit& split,
                  const model::DeviceRoom& room, int64_t step_tokens);
// The plan with the least slots.
model::MemoryPlan WithLeastSlots(const model::MemoryPlan& plan, const SlotTrade& trade);

// Sets slots as states grow and go. Behind each step, on the engine's thread.
class SlotTrader {
 public:
  // `set`: backend::SetExpertSlots.
  SlotTrader(const SlotTrade& trade, std::function<Status(int64_t slots)> set)
      : trade_(trade), set_(std::move(set)), slots_(trade.most) {}

  // Fewer at once; more when there was room for them behind so many steps, since the cache begins empty.
  static constexpr int kStepsBeforeMore = 256;
  void OnStep(int64_t state_bytes);
  int64_t slots() const { return slots_; }

 private:
  const SlotTrade trade_;
  const std::function<Status(int64_t)> set_;
  int64_t slots_;
  int steps_with_room_ = 0;
};

}  // namespace dsv4::apps
