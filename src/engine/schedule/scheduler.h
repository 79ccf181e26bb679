// Scheduler: decides which sequences run in a step and how many tokens of each. Plain numbers; it never sees
// a tensor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dsv4::engine {

struct Pending {
  int64_t num_tokens = 0;  // Tokens not yet in the state: 1 while decoding, more during prefill.
  int64_t max_chunk = 0;   // A chunk may not be longer (the state is wanted there); 0: no limit.
  uint64_t arrival = 0;    // Ascending with the time of arrival.
  int64_t priority = 0;    // Prompts of a lower number are read first.
  bool overdue = false;    // A prompt whose first token should have come already.
  uint64_t owner = 0;      // The one that asked.
};

struct ScheduledChunk {
  size_t sequence = 0;  // Index into the pending list.
  int64_t num_tokens = 0;
};

struct StepBudget {
  int64_t max_tokens = 512;
  // Prefill tokens in a step that also decodes: they are what streaming clients wait for.
  int64_t max_prefill_beside_decode = 512;
};

// Decoding sequences (one pending token) come first, each gets its token, so that no prefill stops them. Of
// what is left, owners with prompts get equal shares, and what one does not want is the others'. Where each
// has one prompt, all are as of one owner. Of a share, prompts of the lowest priority number get all that they
// want, then those of the next. Among prompts of one number half goes by age, the oldest first, and half by
// how little they lack, the shortest first. So a short prompt passes a long one. A long one is as fast as on
// half a machine that serves in order of arrival. Once one of them is overdue, all goes by age. At least one
// token is scheduled when any is pending. Chunks come in the order of `pending`, decoding ones first.
std::vector<ScheduledChunk> ScheduleStep(std::span<const Pending> pending, const StepBudget& budget);

}  // namespace dsv4::engine
