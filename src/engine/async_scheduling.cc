// Async scheduling: while all sequences decode, and each token is a choice among its logits alone, a step chooses its tokens on the
// backend, and the step behind it is queued before the host has seen them. Positions and lengths do not depend on them. The host is one
// step behind the device, which never waits for it.
//
// A sequence that turns out to have ended with a stop token has read that token in the step behind: it is taken back. Whatever has to be
// decided between two steps (a request that waits or is cancelled, memory that runs out) is decided with no step in flight.
#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "engine/sequence.h"
#include "ops/sample.h"

namespace dsv4::engine {

bool Engine::MayGoOn() {
  if (!std::ranges::all_of(running_, [](const auto& sequence) { return sequence->GoesOn(); })) return false;
  if (MayAdmit() && !HoldsPrompts()) return false;
  if (ChooseToGiveWay() < running_.size()) return false;
  const auto now = std::chrono::steady_clock::now();
  const auto is_to_end = [&](const auto& sequence) {
    return sequence->cancelled || (sequence->request.deadline && now >= *sequence->request.deadline);
  };
  if (std::ranges::any_of(running_, is_to_end) || std::ranges::any_of(waiting_, is_to_end)) return false;
  int64_t state_bytes = 0;
  for (const auto& sequence : running_)
    state_bytes += model_.MostStateBytes(static_cast<int64_t>(sequence->tokens.size()) + 1);
  return options_.max_state_bytes == 0 || running_.size() == 1 || state_bytes <= options_.max_state_bytes;
}

bool Engine::QueuesAhead() {
  if (!options_.async_scheduling.value_or(model_.asynchronous()) || !model_.can_queue()) return false;
  // A watcher wants logits, and a token that was read too much must be one that can be taken back.
  if (options_.observer != nullptr || options_.watcher != nullptr) return false;
  if (model_.cache_layout().max_rewind_tokens < 1) return false;
  const int64_t most = std::min(options_.max_step_tokens, model_.options().max_chunk_tokens);
  if (running_.empty() || static_cast<int64_t>(running_.size()) > most || !MayGoOn()) return false;
  const bool all_may = std::ranges::all_of(running_, [](const auto& sequence) {
    return sequence->num_pending() == 1 && sequence->num_output_tokens() > 0 && sequence->GoesOn() &&
           sequence->sampler.by_logits_alone();
  });
  if (!all_may || PlanDrafts()) return false;
  if (!UploadAllowed().ok()) return false;  // Without memory; a step that reads logits may do with less.
  std::vector<Sequence*> sequences;
  for (const auto& sequence : running_) sequences.push_back(sequence.get());
  in_flight_ = Queue(sequences, nullptr);
  return in_flight_ != nullptr;
}

Status Engine::UploadAllowed() {
  if (allowed_tokens_.empty() || allowed_on_backend_) return {};
  DSV4_ASSIGN_OR_RETURN_STATUS(allowed_on_backend_, model_.UploadAllowedTokens(allowed_tokens_));
  return {};
}

std::unique_ptr<Engine::StepInFlight> Engine::Queue(const std::vector<Sequence*>& sequences,
                                                    const StepInFlight* before) {
  std::vector<model::DecodeChunk> chunks;
  for (Sequence* const sequence : sequences) {
    model::DecodeChunk chunk{.state = &*sequence->state};
    if (before == nullptr) {
      chunk.token = sequence->tokens.back();
    } else {
      chunk.follows = std::ranges::find(before->sequences, sequence) - before->sequences.begin();
    }
    chunk.choice = sequence->sampler.ChoiceAfter(before == nullptr ? 0 : 1);
    chunks.push_back(chunk);
  }
  // An error changes nothing; a step that is waited for will meet it and say so.
  const int64_t replayed_before = model_.replay_counters().replayed;
  Result<std::unique_ptr<model::QueuedStep>> step = model_.QueueDecode(chunks, allowed_on_backend_);
  if (!step) return nullptr;
  ++stats_.num_steps;
  stats_.num_steps_replayed += model_.replay_counters().replayed - replayed_before;
  if (before != nullptr) ++stats_.num_steps_ahead;
  return std::make_unique<StepInFlight>(StepInFlight{std::move(*step), sequences});
}

bool Engine::GoOn(std::vector<Event>& events) {
  const std::unique_ptr<StepInFlight> now = std::exchange(in_flight_, nullptr);
  if (now->of_nobody()) return false;
  std::vector<Sequence*> next;
  // A draft of what comes behind the token in flight wants a step of its own, with that token in front.
  const bool drafts = PlanDrafts();
  for (const auto& sequence : running_) sequence->num_verified = 0;
  if (MayGoOn() && !drafts) {
    // The token that a sequence is about to get may be its last, which is never read.
    std::ranges::copy_if(now->sequences, std::back_inserter(next), [](const Sequence* sequence) {
      return sequence != nullptr && sequence->num_output_tokens() + 1 < sequence->max_tokens;
    });
  }
  if (!next.empty()) in_flight_ = Queue(next, now.get());
  Settle(*now, events);
  // The time of one step, where the one behind it was there to begin at once.
  const auto num_rows = static_cast<int64_t>(now->sequences.size());
  if (settled_.has_value()) SawDecodeStep(num_rows, num_rows, *settled_);
  CountGoodStep();
  settled_.reset();
  if (in_flight_ != nullptr) settled_ = Clock::now();
  if (in_flight_ != nullptr) {
    for (Sequence*& sequence : in_flight_->sequences) {
      if (sequence->finished || !sequence->GoesOn()) sequence = nullptr;
    }
  }
  // A token has ended the waiting of a constraint. The step behind has chosen without it: its token is not taken, and read again is what
  // it was chosen from.
  for (const auto& sequence : running_) {
    if (sequence->finished || sequence->GoesOn() || sequence->num_pending() > 0) continue;
    if (const Status status = sequence->state->Rewind(1); !status.ok())
      Finish(*sequence, FinishReason::kError, status, -1, events);
  }
  std::erase_if(running_, [](const auto& sequence) { return sequence->finished; });
  if (in_flight_ == nullptr) DropEnded(events);
  return true;
}

void Engine::Settle(StepInFlight& step, std::vector<Event>& events) {
  const Result<std::vector<model::ChosenToken>> tokens = step.step->Wait();
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    if (step.sequences[i] == nullptr) continue;
    Sequence& sequence = *step.sequences[i];
    if (!tokens) {
      Finish(sequence, FinishReason::kError, tokens.error(), -1, events);
      continue;
    }
    Take(sequence, (*tokens)[i]);
    Advance(sequence, events);
  }
}

bool Engine::Take(Sequence& sequence, const model::ChosenToken& token) const {
  if (token.fault != ops::kNoFault) {
    sequence.sampled.emplace_back(Error(token.fault == model_.config().vocab_size
                                            ? sequence.sampler.NoChoice()
                                            : sequence.sampler.BadLogit(token.fault, "NaN or infinite")));
    return false;
  }
  sequence.sampler.Record(token.id);
  sequence.sampled.emplace_back(sampling::SampledToken{.id = token.id});
  if (sequence.request.stop_tokens.contains(token.id)) return false;
  if (sequence.request.constraint != nullptr) sequence.request.constraint->Accept(token.id);
  // The token may have ended the waiting of a constraint: what comes behind it has been chosen without.
  return sequence.GoesOn();
}

// Logits of several rows would come to the host, and be looked at there, with the device idle.
bool Engine::VerifyOnBackend(std::vector<Event>& events) {
  if (!options_.async_scheduling.value_or(model_.asynchronous()) || !model_.can_queue()) return false;
  std::vector<model::DecodeChunk> chunks;
  std::vector<std::vector<sampling::ChoiceParams>> choices;  // Behind the tokens of each draft.
  int64_t num_rows = 0;
  for (const auto& sequence : running_) {
    const bool may = sequence->num_pending() == 1 && sequence->num_output_tokens() > 0 &&
                     sequence->GoesOn() && sequence->sampler.by_logits_alone();
    if (!may) return false;
    choices.emplace_back();
    for (int64_t i = 1; i <= sequence->num_verified; ++i)
      choices.back().push_back(sequence->sampler.ChoiceAfter(static_cast<uint64_t>(i)));
    num_rows += 1 + sequence->num_verified;
    chunks.push_back(
        {.state = &*sequence->state,
         .token = sequence->tokens.back(),
         .choice = sequence->sampler.ChoiceAfter(0),
         .draft = std::span(sequence->draft.tokens).first(static_cast<size_t>(sequence->num_verified)),
         .draft_choices = choices.back(),
         .drafts_next = sequence->num_verified > 0 && IsByModel(sequence->draft)});
  }
  if (num_rows > model_.options().max_chunk_tokens || !UploadAllowed().ok()) return false;
  const Clock::time_point began = Clock::now();
  const int64_t replayed_before = model_.replay_counters().replayed;
  // An error changes nothing; a step that is waited for will meet it and say so.
  Result<std::unique_ptr<model::QueuedStep>> step = model_.QueueDecode(chunks, allowed_on_backend_);
  if (!step) return false;
  const Result<std::vector<model::ChosenToken>> tokens = (*step)->Wait();
  ++stats_.num_steps;
  ++stats_.num_steps_verified_on_backend;
  stats_.num_steps_replayed += model_.replay_counters().replayed - replayed_before;
  const auto num_sequences = static_cast<int64_t>(running_.size());
  if (tokens) SawDecodeStep(num_rows, num_sequences, began);
  size_t row = 0;
  for (const auto& sequence : running_) {
    const std::span<const int32_t> draft = chunks[static_cast<size_t>(&sequence - running_.data())].draft;
    const size_t first = std::exchange(row, row + 1 + draft.size());
    if (!tokens) {
      Finish(*sequence, FinishReason::kError, tokens.error(), -1, events);
      continue;
    }
    for (size_t i = 0; i <= draft.size(); ++i) {
      const model::ChosenToken& token = (*tokens)[first + i];
      if (!Take(*sequence, token) || (i < draft.size() && token.id != draft[i])) break;
    }
    Advance(*sequence, events);
  }
  std::erase_if(running_, [](const auto& sequence) { return sequence->finished; });
  return true;
}

void Engine::TakeBack(Sequence& sequence) {
  if (!sequence.state || sequence.state->poisoned()) return;
  const auto num_known = static_cast<int64_t>(sequence.tokens.size());
  const int64_t too_many = sequence.length() - num_known;
  if (too_many > 0 && !sequence.state->Rewind(too_many).ok()) sequence.state.reset();
}

}  // namespace dsv4::engine
