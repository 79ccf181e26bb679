// What sequences begin with, and what they read in a step.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/reading_pieces.h"
#include "engine/sequence.h"

namespace dsv4::engine {
namespace {

// Logits of a prompt's rows in one step: a row of them is half a megabyte.
constexpr int64_t kMostScoredRows = 128;

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

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
    pending.push_back({.num_tokens = sequence->num_pending(),
                       .max_chunk = max_chunk,
                       .arrival = sequence->id,
                       .priority = sequence->request.priority,
                       .overdue = options_.first_token_target > 0.0 && sequence->num_output_tokens() == 0 &&
                                  SecondsSince(sequence->arrival) > options_.first_token_target});
  }
  return pending;
}

StepBudget Engine::Budget(std::span<const Pending> pending) const {
  PromptLoad load;
  for (size_t i = 0; i < pending.size(); ++i) {
    if (pending[i].num_tokens == 1) {
      ++load.answering;
    } else {
      load.Add(pending[i].num_tokens, SecondsSince(running_[i]->arrival));
      load.overdue = load.overdue || pending[i].overdue;
    }
  }
  return {.max_tokens = options_.max_step_tokens, .max_prefill_beside_decode = prefill_policy_.Piece(load)};
}

bool Engine::MayAdmit() const {
  if (waiting_.empty() || static_cast<int64_t>(running_.size()) >= most_running_) return false;
  return options_.max_state_bytes == 0 || running_.empty() ||
         RunningBytes() + BytesOf(*waiting_.front()) <= options_.max_state_bytes;
}

bool Engine::HoldsPrompts() {
  if (!MayAdmit()) return false;
  PromptLoad load;
  int64_t answers_priority = INT64_MAX;
  for (const auto& sequence : running_) {
    if (sequence->num_pending() > 1 || sequence->num_output_tokens() == 0) return false;
    ++load.answering;
    answers_priority = std::min(answers_priority, sequence->request.priority);
  }
  auto room = static_cast<size_t>(most_running_) - running_.size();
  for (const auto& sequence : waiting_) {
    if (room-- == 0) break;
    if (sequence->request.priority < answers_priority) return false;
    if (sequence->expected_reuse < 0)
      sequence->expected_reuse = store_.SharedLength(sequence->request.cache_salt, sequence->tokens);
    const auto known = static_cast<int64_t>(sequence->tokens.size());
    const double waited = SecondsSince(sequence->arrival);
    load.Add(std::max<int64_t>(known - sequence->expected_reuse, 1), waited);
    load.overdue =
        load.overdue || (options_.first_token_target > 0.0 && waited > options_.first_token_target);
  }
  return prefill_policy_.Holds(load);
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
