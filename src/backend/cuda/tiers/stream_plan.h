// StreamPlan: which slots of the cache experts take while a pass of many tokens goes through it
// (tiers/expert_stream.h).
//
// Such a pass wants nearly all experts of every layer, so they are known before the router chooses. Those
// that are in a slot stay there. Others take slots that are free, and keep them. The rest goes through two
// buffers, which are the cache's last slots: one is filled while what is in the other is multiplied. A layer
// is divided into parts, each with as many experts to bring, as a buffer has room for them.
//
// Free slots are shared out evenly among layers. If the first ones had them all, passes would bring nothing
// while those are computed, and then everything of the others. Within a layer experts that stay lie between
// those that come, so that parts are large enough to multiply.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dsv4::backend::cuda {

// An expert on its way: their numbers, as ExpertCacheState's.
struct StreamedExpert {
  int32_t expert = 0;
  int32_t slot = 0;
  bool stays = false;  // The slot is no buffer's.
};

// The experts in rows [begin, end) of a layer's table.
struct StreamedPart {
  int begin = 0;
  int end = 0;
  int buffer = -1;  // Buffer that it uses: 0 or 1; -1: none.
  std::vector<StreamedExpert> brought;
};

struct StreamedLayer {
  std::vector<StreamedPart> parts;  // One behind the other: all rows.
  std::vector<int32_t> slots;       // By row: where each cached one is to be found; -1 of others.
  int64_t num_hits = 0;             // Hits: those that were there.
  int64_t num_brought = 0;
};

class StreamPlan {
 public:
  // The most slots of a buffer, and the share of all that each may have.
  static constexpr int kMaxBufferSlots = 64;
  static constexpr int kSlotsOfBufferSlot = 8;

  explicit StreamPlan(int num_slots);

  // Whether there is room for two buffers.
  bool has_room() const { return buffer_slots_ > 0; }
  int buffer_slots() const { return buffer_slots_; }
  int first_buffer_slot() const { return num_slots_ - 2 * buffer_slots_; }

  // Begins with the cache's slots: 1 + the slot of each expert, 0: none. What is in the buffers' slots is
  // forgotten.
  void Begin(std::span<const int32_t> slot_of);
  // The next layer of the pass, or of the one behind it: its experts by row, 0: one that is always there.
  StreamedLayer Next(std::span<const int32_t> experts);

 private:
  // How many of a layer's experts, of which so many are in no slot, take free ones.
  int64_t TakeShare(int64_t num_missing);

  int num_slots_;
  int buffer_slots_;
  int next_buffer_ = 0;
  std::vector<int32_t> slot_of_;
  std::vector<int32_t> free_;  // Slots, the lowest last.
  int64_t num_free_ = 0;       // When it began,
  int64_t num_missing_ = 0;    // with so many experts in no slot,
  int64_t num_seen_ = 0;       // of which layers had so many since.
};

}  // namespace dsv4::backend::cuda
