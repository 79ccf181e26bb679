// Masks: what constraints allow next, worked out before a step within bounds of time. A sequence whose mask
// is late sits the step out.
#pragma once

#include <chrono>
#include <cstdint>

#include "engine/engine_core.h"

namespace dsv4::engine {

// Time in a step for each sequence's mask, at the same time for several: more than nearly all masks take.
inline constexpr std::chrono::microseconds kMaskAtOnce(250);

class Masks {
 public:
  // Outlives it.
  explicit Masks(EngineCore& core) : core_(core) {}
  // Works on the masks of all that run, and sets Sequence::mask_late. Owners have turns, so that dear masks
  // of one hold up no other.
  void Prepare();

 private:
  EngineCore& core_;
  uint64_t last_owner_ = 0;  // The owner of the last late masks that had a turn.
};

}  // namespace dsv4::engine
