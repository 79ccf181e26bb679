#include "backend/cuda/tiers/stream_plan.h"

#include <algorithm>

namespace dsv4::backend::cuda {

StreamPlan::StreamPlan(int num_slots)
    : num_slots_(num_slots),
      buffer_slots_(num_slots < 2 ? 0 : std::clamp(num_slots / kSlotsOfBufferSlot, 1, kMaxBufferSlots)) {}

void StreamPlan::Begin(std::span<const int32_t> slot_of) {
  slot_of_.assign(slot_of.begin(), slot_of.end());
  std::vector<char> taken(static_cast<size_t>(num_slots_));
  for (int32_t& slot : slot_of_) {
    if (slot > first_buffer_slot()) slot = 0;
    if (slot > 0) taken[static_cast<size_t>(slot - 1)] = 1;
  }
  free_.clear();
  for (int slot = first_buffer_slot() - 1; slot >= 0; --slot) {
    if (taken[static_cast<size_t>(slot)] == 0) free_.push_back(slot);
  }
}

StreamedLayer StreamPlan::Next(std::span<const int32_t> experts) {
  StreamedLayer layer;
  layer.slots.assign(experts.size(), -1);
  StreamedPart part;
  int in_buffer = 0;
  const auto end_part = [&](int end) {
    part.end = end;
    if (part.buffer >= 0) next_buffer_ = 1 - next_buffer_;
    layer.parts.push_back(std::move(part));
    part = {.begin = end};
    in_buffer = 0;
  };
  for (size_t place = 0; place < experts.size(); ++place) {
    if (experts[place] == 0) continue;
    int32_t& known = slot_of_[static_cast<size_t>(experts[place] - 1)];
    if (known > 0) {
      layer.slots[place] = known - 1;
      ++layer.num_hits;
      continue;
    }
    if (static_cast<int>(part.brought.size()) == buffer_slots_) end_part(static_cast<int>(place));
    StreamedExpert brought{.expert = experts[place]};
    if (!free_.empty()) {
      brought.slot = free_.back();
      brought.stays = true;
      free_.pop_back();
      known = brought.slot + 1;
    } else {
      part.buffer = next_buffer_;
      brought.slot = first_buffer_slot() + next_buffer_ * buffer_slots_ + in_buffer++;
    }
    layer.slots[place] = brought.slot;
    part.brought.push_back(brought);
    ++layer.num_brought;
  }
  end_part(static_cast<int>(experts.size()));
  return layer;
}

}  // namespace dsv4::backend::cuda
