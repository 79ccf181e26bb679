// Trade of GPU memory between slots of cached experts and states of sequences.
#include "apps/tiers/slot_trade.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "base/text.h"

namespace dsv4::apps {

int64_t SlotTrade::SlotsBeside(int64_t state_bytes) const {
  const int64_t fit = (room - state_bytes - step) / slot_bytes;
  if (fit >= most) return most;
  constexpr int64_t kParts = 16;
  const int64_t part = std::max<int64_t>(1, (most - least) / kParts);
  return least + std::max<int64_t>(0, fit - least) / part * part;
}

SlotTrade TradeOf(const model::MemoryPlan& plan, const model::ExpertSplit& split,
                  const model::DeviceRoom& room, int64_t step_tokens) {
  if (split.cached == 0 || plan.slot == 0) return {};
  const int64_t states = plan.num_sequences * plan.sequence;
  const auto tokens_of = [&](int64_t tokens) {
    return static_cast<int64_t>(plan.per_token * static_cast<double>(tokens));
  };
  return {.slot_bytes = plan.slot,
          .least = std::min(split.cached, split.slots),
          .most = split.slots,
          .room = room.free - room.reserved - (plan.total() - plan.expert_cache - states),
          .step = plan.sequence - tokens_of(plan.context) + tokens_of(step_tokens)};
}

model::MemoryPlan WithLeastSlots(const model::MemoryPlan& plan, const SlotTrade& trade) {
  model::MemoryPlan least = plan;
  if (trade.any()) least.expert_cache = trade.least * trade.slot_bytes;
  return least;
}

void SlotTrader::OnStep(int64_t state_bytes) {
  const int64_t wanted = trade_.SlotsBeside(state_bytes);
  steps_with_room_ = wanted > slots_ ? steps_with_room_ + 1 : 0;
  if (wanted == slots_ || (wanted > slots_ && steps_with_room_ < kStepsBeforeMore)) return;
  steps_with_room_ = 0;
  if (const Status set = set_(wanted); !set.ok()) {
    LogWarning(fmt::format("experts: {} instead of {}: {}", Counted(wanted, "slot"), slots_, set.message()));
    return;
  }
  LogInfo(fmt::format("experts: {} instead of {} beside {:.2f} GB of states", Counted(wanted, "slot"), slots_,
                      static_cast<double>(state_bytes) / 1e9));
  slots_ = wanted;
}

}  // namespace dsv4::apps
