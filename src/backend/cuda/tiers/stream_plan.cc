// Arithmetic of streamed passes: how many experts each part has, and which of the last slots it takes.
#include "backend/cuda/tiers/stream_plan.h"

#include <algorithm>
#include <iterator>

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
  num_free_ = std::ssize(free_);
  num_missing_ = std::ranges::count(slot_of_, 0);
  num_seen_ = 0;
}

int64_t StreamPlan::TakeShare(int64_t num_missing) {
  num_seen_ += num_missing;
  const int64_t taken = num_free_ - std::ssize(free_);
  const int64_t due = num_seen_ >= num_missing_ ? num_free_ : num_free_ * num_seen_ / num_missing_;
  return std::clamp<int64_t>(due - taken, 0, num_missing);
}

StreamedLayer StreamPlan::Next(std::span<const int32_t> experts) {
  StreamedLayer layer;
  layer.slots.assign(experts.size(), -1);
  const int64_t num_missing = std::ranges::count_if(
      experts, [&](int32_t expert) { return expert != 0 && slot_of_[static_cast<size_t>(expert - 1)] == 0; });
  const int64_t num_staying = TakeShare(num_missing);
  const auto parts_of = [&](int64_t count) {
    return std::max<int64_t>(1, (count + buffer_slots_ - 1) / buffer_slots_);
  };
  const int64_t most_brought = (num_missing + parts_of(num_missing) - 1) / parts_of(num_missing);
  // Groups of missing experts, as many as the next pass will have parts, each with as many that stay behind
  // as many that do not.
  const int64_t num_groups = parts_of(num_missing - num_staying);
  const auto stays = [&](int64_t missing) {
    const int64_t group = ((missing + 1) * num_groups - 1) / num_missing;
    const int64_t end = num_missing * (group + 1) / num_groups;
    return end - missing <= num_staying * (group + 1) / num_groups - num_staying * group / num_groups;
  };
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
    if (std::ssize(part.brought) == most_brought) end_part(static_cast<int>(place));
    StreamedExpert brought{.expert = experts[place], .stays = stays(layer.num_brought)};
    if (brought.stays) {
      brought.slot = free_.back();
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
