// What sequences begin with, and what they read in a step.
#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <vector>

#include "engine/reading_pieces.h"
#include "engine/sequence.h"

namespace dsv4::engine {
namespace {

// Logits of a prompt's rows in one step: a row of them is half a megabyte.
constexpr int64_t kMostScoredRows = 128;

}  // namespace

std::optional<kv::SequenceState> Engine::FindState(const Sequence& sequence) {
  const uint64_t salt = sequence.request.cache_salt;
  std::optional<kv::SequenceState> state = store_.Find(salt, sequence.tokens);
  if (!state || few_rows_ == 0) return state;
  const int64_t left = sequence.num_prompt_tokens - state->length();
  if (left <= 0 || left > few_rows_) return state;
  // So few rows of a prompt would have other bits than with those in front of them.
  const int64_t usable = sequence.num_prompt_tokens - few_rows_;
  if (usable <= 0) return std::nullopt;
  return store_.Find(salt, std::span(sequence.tokens).first(static_cast<size_t>(usable)));
}

std::vector<Pending> Engine::Wanted() const {
  std::vector<Pending> pending;
  for (const auto& sequence : running_) {
    const int64_t next_kept = sequence->NextKept();
    int64_t max_chunk = next_kept > 0 ? next_kept - sequence->length() : 0;
    if (sequence->wants_scores())
      max_chunk = max_chunk > 0 ? std::min(max_chunk, kMostScoredRows) : kMostScoredRows;
    // What steps have chosen is read again as they read it.
    if (few_rows_ > 0 && !sequence->reading())
      max_chunk = max_chunk > 0 ? std::min(max_chunk, few_rows_) : few_rows_;
    // Without its mask nothing can be sampled. A prompt goes on up to its last pieces, for others may wait for it.
    int64_t num_tokens = sequence->num_pending();
    if (sequence->mask_late && few_rows_ == 0 && num_tokens > 1)
      max_chunk = max_chunk > 0 ? std::min(max_chunk, num_tokens - 1) : num_tokens - 1;
    else if (sequence->mask_late && num_tokens <= options_.max_step_tokens)
      num_tokens = 0;
    const Clock::duration age = Clock::now() - sequence->arrival;
    // Priorities count among an owner's own prompts: the lowest number of all must not stop others.
    const auto passes = [&](const auto& other) {
      return other->request.owner == sequence->request.owner && other->num_pending() > 1 &&
             other->request.priority < sequence->request.priority;
    };
    pending.push_back({.num_tokens = num_tokens,
                       .max_chunk = max_chunk,
                       .arrival = sequence->id,
                       .priority = std::ranges::count_if(running_, passes),
                       .overdue = options_.first_token_target > 0.0 && sequence->num_output_tokens() == 0 &&
                                  std::chrono::duration<double>(age).count() > options_.first_token_target});
  }
  return pending;
}

StepBudget Engine::Budget(std::span<const Pending> pending) const {
  StepBudget budget = {.max_tokens = options_.max_step_tokens,
                       .max_prefill_beside_decode = options_.max_prefill_beside_decode};
  if (options_.max_gap <= 0.0) return budget;
  const std::optional<int64_t> within = step_price_.PrefillWithin(options_.max_gap);
  if (!within) return budget;
  const bool any_overdue = std::ranges::any_of(pending, [](const Pending& prompt) { return prompt.overdue; });
  budget.max_prefill_beside_decode =
      any_overdue ? *within : std::min(*within, budget.max_prefill_beside_decode);
  return budget;
}

std::vector<ScheduledChunk> Engine::Schedule(std::span<const Pending> pending) const {
  std::vector<ScheduledChunk> schedule = ScheduleStep(pending, Budget(pending));
  if (few_rows_ == 0) return schedule;
  int64_t room = options_.max_step_tokens;
  std::vector<PromptPiece> pieces;
  std::vector<ScheduledChunk*> of_pieces;
  for (ScheduledChunk& chunk : schedule) {
    room -= chunk.num_tokens;
    const Sequence& sequence = *running_[chunk.sequence];
    if (!sequence.reading()) continue;
    pieces.push_back({.left = sequence.num_prompt_tokens - sequence.length(), .tokens = chunk.num_tokens});
    of_pieces.push_back(&chunk);
  }
  EnlargePieces(pieces, std::max<int64_t>(room, 0), few_rows_);
  for (size_t i = 0; i < pieces.size(); ++i) of_pieces[i]->num_tokens = pieces[i].tokens;
  std::erase_if(schedule, [](const ScheduledChunk& chunk) { return chunk.num_tokens == 0; });
  return schedule;
}

}  // namespace dsv4::engine
