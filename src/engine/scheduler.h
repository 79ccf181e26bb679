// Scheduler: decides which sequences run in a step and how many tokens of each. Plain numbers; it never sees a tensor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dsv4::engine {

struct Pending {
  int64_t num_tokens = 0;  // Tokens not yet in the state: 1 while decoding, more during prefill.
};

struct ScheduledChunk {
  size_t sequence = 0;  // Index into the pending list.
  int64_t num_tokens = 0;
};

// Decoding sequences (one pending token) come first, each gets its token, so that no prefill delays them; then prefills in
// order of arrival share what is left of `max_step_tokens`. The first chunk is always scheduled, so a step never starves.
std::vector<ScheduledChunk> ScheduleStep(std::span<const Pending> pending, int64_t max_step_tokens);

}  // namespace dsv4::engine
