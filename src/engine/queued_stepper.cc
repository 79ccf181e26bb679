// Async scheduling: while all sequences decode, a step chooses its tokens on the backend. The step behind it is queued before the host
// has seen them. Positions and lengths do not depend on them. The host is one step behind the device, which never waits for it.
//
// A row that takes more than its logits (a grammar, penalties, log-probabilities) is queued as the others are, up to its logits. While the
// device computes them the host looks at the tokens of the step in front and makes the masks. Then it queues the choice of all rows.
//
// A sequence that turns out to have ended with a stop token has read that token in the step behind: it is taken back. So is that of a
// sequence whose mask is late, which sits out steps until it is there. No step is in flight while something is
// decided between two steps: a request that waits or is cancelled, memory that runs out.
#include "engine/queued_stepper.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "engine/row_rules.h"
#include "model/runtime/queued_step.h"

namespace dsv4::engine {
namespace {

bool Decodes(const Sequence& sequence) {
  return sequence.num_pending() == 1 && sequence.num_output_tokens() > 0 && sequence.MayChooseOnBackend();
}

}  // namespace

struct QueuedStepper::InFlight {
  std::unique_ptr<model::QueuedStep> step;
  std::vector<Sequence*> sequences;  // The sequences of its chunks; null where the token is not wanted.

  bool has_ended() const {
    return std::ranges::all_of(sequences, [](const Sequence* sequence) { return sequence == nullptr; });
  }
};

QueuedStepper::QueuedStepper(EngineCore& core, Admission& admission, Answers& answers, Speculator& speculator,
                             Masks& masks)
    : core_(core), admission_(admission), answers_(answers), speculator_(speculator), masks_(masks) {}

QueuedStepper::~QueuedStepper() = default;

void QueuedStepper::Abandon() {
  in_flight_.reset();
  settled_.reset();
}

bool QueuedStepper::Step(std::vector<Event>& events) {
  settled_.reset();
  if (QueuesAhead(events)) {
    Continue(events);
    return true;
  }
  return speculator_.Choose() && Verify(events);
}

bool QueuedStepper::MayContinue() {
  if (admission_.HasWork()) return false;
  const auto now = std::chrono::steady_clock::now();
  const auto is_to_end = [&](const auto& sequence) {
    return sequence->cancelled || (sequence->request.deadline && now >= *sequence->request.deadline);
  };
  if (std::ranges::any_of(core_.running, is_to_end) || std::ranges::any_of(core_.waiting, is_to_end))
    return false;
  int64_t state_bytes = 0;
  for (const auto& sequence : core_.running)
    state_bytes += core_.model.MostStateBytes(static_cast<int64_t>(sequence->tokens.size()) + 1);
  return core_.options.max_state_bytes == 0 || core_.running.size() == 1 ||
         state_bytes <= core_.options.max_state_bytes;
}

bool QueuedStepper::QueuesAhead(std::vector<Event>& events) {
  if (!core_.queues()) return false;
  // A watcher wants logits, and a token that was read too much must be one that can be taken back.
  if (core_.options.observer != nullptr || core_.options.watcher != nullptr) return false;
  if (core_.model.cache_layout().max_rewind_tokens < 1) return false;
  const int64_t most = std::min(core_.options.max_step_tokens, core_.model.options().max_chunk_tokens);
  if (core_.running.empty() || static_cast<int64_t>(core_.running.size()) > most || !MayContinue())
    return false;
  if (!std::ranges::all_of(core_.running, [](const auto& sequence) { return Decodes(*sequence); }) ||
      speculator_.Plan())
    return false;
  const std::vector<Sequence*> sequences = Next(nullptr);
  if (sequences.empty()) return false;  // Their masks are late.
  if (!core_.UploadAllowed().ok())
    return false;  // Without memory; a step that reads logits may do with less.
  in_flight_ = Queue(sequences, nullptr);
  if (in_flight_ == nullptr) return false;
  ChooseTokens(*in_flight_, events);
  return true;
}

std::vector<Sequence*> QueuedStepper::Next(const InFlight* before) const {
  std::vector<Sequence*> next;
  for (const auto& sequence : core_.running) {
    const bool follows =
        before != nullptr && std::ranges::find(before->sequences, sequence.get()) != before->sequences.end();
    // The token that a sequence is about to get may be its last, which is never read.
    if (follows ? sequence->num_output_tokens() + 1 < sequence->max_tokens : !sequence->mask_late)
      next.push_back(sequence.get());
  }
  return next;
}

std::unique_ptr<QueuedStepper::InFlight> QueuedStepper::Queue(const std::vector<Sequence*>& sequences,
                                                              const InFlight* before) {
  const bool plain =
      std::ranges::all_of(sequences, [](const Sequence* sequence) { return sequence->IsPlain(); });
  std::vector<model::DecodeChunk> chunks;
  for (Sequence* const sequence : sequences) {
    model::DecodeChunk chunk{.state = &*sequence->state, .token = sequence->tokens.back()};
    if (before != nullptr) {
      const auto place = std::ranges::find(before->sequences, sequence);
      if (place != before->sequences.end()) chunk.follows = place - before->sequences.begin();
    }
    chunk.choice = sequence->sampler.ChoiceAfter(chunk.follows < 0 ? 0 : 1);
    chunk.biases = sequence->sampler.biases();
    chunks.push_back(chunk);
  }
  // An error changes nothing; a step that is waited for will meet it and say so.
  const int64_t replayed_before = core_.model.replay_counters().replayed;
  Result<std::unique_ptr<model::QueuedStep>> step =
      core_.model.QueueDecode(chunks, core_.allowed_on_backend, /*chooses_later=*/!plain);
  if (!step) return nullptr;
  ++core_.stats.num_steps;
  core_.stats.num_steps_replayed += core_.model.replay_counters().replayed - replayed_before;
  if (before != nullptr) ++core_.stats.num_steps_ahead;
  return std::make_unique<InFlight>(InFlight{std::move(*step), sequences});
}

void QueuedStepper::ChooseTokens(InFlight& step, std::vector<Event>& events) {
  for (Sequence*& sequence : step.sequences) {
    if (sequence != nullptr && sequence->finished) sequence = nullptr;
  }
  const bool chooses = step.step->waits_for_choice();
  if (chooses) masks_.Prepare();
  RowRules rules;
  for (Sequence*& sequence : step.sequences) {
    if (sequence == nullptr) {
      rules.AddUnwanted();
      continue;
    }
    // A token has ended the waiting of a constraint, and the step has chosen without it; or there is nothing yet to choose by.
    if (chooses ? sequence->mask_late : !sequence->GoesOn()) {
      LeaveOut(std::exchange(sequence, nullptr), events);
      rules.AddUnwanted();
    } else if (chooses && !rules.AddNext(*sequence)) {
      answers_.Advance(*std::exchange(sequence, nullptr), events);
    }
  }
  if (!chooses) return;
  const Status status = core_.model.Choose(*step.step, rules.rules());
  if (status.ok()) return;
  for (Sequence*& sequence : step.sequences) {
    if (sequence != nullptr) answers_.Fail(*std::exchange(sequence, nullptr), status, events);
  }
}

void QueuedStepper::LeaveOut(Sequence* sequence, std::vector<Event>& events) {
  if (const Status status = sequence->state->Rewind(1); !status.ok())
    answers_.Fail(*sequence, status, events);
}

bool QueuedStepper::Continue(std::vector<Event>& events) {
  if (in_flight_ == nullptr) return false;
  const std::unique_ptr<InFlight> now = std::exchange(in_flight_, nullptr);
  if (now->has_ended()) return false;
  // A draft of what comes behind the token in flight wants a step of its own, with that token in front.
  const bool drafts = speculator_.Plan();
  for (const auto& sequence : core_.running) sequence->num_verified = 0;
  if (MayContinue() && !drafts) {
    if (const std::vector<Sequence*> next = Next(now.get()); !next.empty())
      in_flight_ = Queue(next, now.get());
  }
  Settle(*now, events);
  // The time of one step, where the one behind it was there to begin at once.
  const auto num_rows = static_cast<int64_t>(now->sequences.size());
  if (settled_.has_value()) speculator_.RecordDecodeStep(num_rows, num_rows, *settled_);
  admission_.CountGoodStep();
  settled_.reset();
  if (in_flight_ != nullptr) {
    settled_ = std::chrono::steady_clock::now();
    ChooseTokens(*in_flight_, events);
  }
  core_.DropFinished();
  if (in_flight_ == nullptr) answers_.DropEnded(events);
  return true;
}

void QueuedStepper::Settle(InFlight& step, std::vector<Event>& events) {
  const Result<std::vector<model::ChosenToken>> tokens = step.step->Wait();
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    if (step.sequences[i] == nullptr) continue;
    Sequence& sequence = *step.sequences[i];
    if (!tokens) {
      answers_.Fail(sequence, tokens.error(), events);
      continue;
    }
    answers_.Take(sequence, (*tokens)[i]);
    answers_.Advance(sequence, events);
  }
}

// Logits of several rows would come to the host, and be looked at there, with the device idle.
bool QueuedStepper::Verify(std::vector<Event>& events) {
  if (!core_.queues()) return false;
  std::vector<Sequence*> sequences;
  std::vector<model::DecodeChunk> chunks;
  std::vector<std::vector<sampling::ChoiceParams>> choices;  // Behind the tokens of each draft.
  int64_t num_rows = 0;
  bool plain = true;
  for (const auto& sequence : core_.running) {
    if (!Decodes(*sequence)) return false;
    if (sequence->mask_late) continue;
    plain = plain && sequence->IsPlain();
    sequences.push_back(sequence.get());
    choices.emplace_back();
    for (int64_t i = 1; i <= sequence->num_verified; ++i)
      choices.back().push_back(sequence->sampler.ChoiceAfter(static_cast<uint64_t>(i)));
    num_rows += 1 + sequence->num_verified;
    chunks.push_back(
        {.state = &*sequence->state,
         .token = sequence->tokens.back(),
         .choice = sequence->sampler.ChoiceAfter(0),
         .biases = sequence->sampler.biases(),
         .draft = std::span(sequence->draft.tokens).first(static_cast<size_t>(sequence->num_verified)),
         .draft_choices = choices.back(),
         .drafts_next = sequence->num_verified > 0 && IsByModel(sequence->draft)});
  }
  if (num_rows > core_.model.options().max_chunk_tokens || !core_.UploadAllowed().ok()) return false;
  const auto began = std::chrono::steady_clock::now();
  const int64_t replayed_before = core_.model.replay_counters().replayed;
  // An error changes nothing; a step that is waited for will meet it and say so.
  Result<std::unique_ptr<model::QueuedStep>> step =
      core_.model.QueueDecode(chunks, core_.allowed_on_backend, /*chooses_later=*/!plain);
  if (!step) return false;
  std::vector<size_t>
      num_ready;  // Tokens that may be taken of each sequence, but for those behind a wrong draft.
  Result<std::vector<model::ChosenToken>> tokens = std::vector<model::ChosenToken>();
  if (plain) {
    for (const model::DecodeChunk& chunk : chunks) num_ready.push_back(1 + chunk.draft.size());
  } else {
    RowRules rules;
    for (size_t i = 0; i < chunks.size(); ++i) {
      const bool allows_any = rules.AddNext(*sequences[i]);
      const size_t behind = rules.AddDraft(*sequences[i], chunks[i].draft);
      num_ready.push_back(allows_any ? 1 + behind : 0);
    }
    if (const Status status = core_.model.Choose(**step, rules.rules()); !status.ok()) tokens = Error(status);
  }
  if (tokens) tokens = (*step)->Wait();
  ++core_.stats.num_steps;
  ++core_.stats.num_steps_verified_on_backend;
  core_.stats.num_steps_replayed += core_.model.replay_counters().replayed - replayed_before;
  if (tokens) speculator_.RecordDecodeStep(num_rows, std::ssize(sequences), began);
  size_t row = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const std::span<const int32_t> draft = chunks[i].draft;
    const size_t first = std::exchange(row, row + 1 + draft.size());
    if (!tokens) {
      answers_.Fail(*sequences[i], tokens.error(), events);
      continue;
    }
    for (size_t k = 0; k < num_ready[i]; ++k) {
      const model::ChosenToken& token = (*tokens)[first + k];
      // Behind a token that ends the waiting of a constraint, plain rows are of no use.
      if (!answers_.Take(*sequences[i], token) || (plain && !sequences[i]->GoesOn()) ||
          (k < draft.size() && token.id != draft[k]))
        break;
    }
    answers_.Advance(*sequences[i], events);
  }
  core_.DropFinished();
  return true;
}

}  // namespace dsv4::engine
