// How sequences get tokens and end.
#include "engine/answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/text.h"
#include "model/runtime/queued_step.h"
#include "ops/sample.h"

namespace dsv4::engine {
namespace {

// Takes back what the state has read beyond the tokens that are known.
void TakeBack(Sequence& sequence) {
  if (!sequence.state || sequence.state->poisoned()) return;
  const auto num_known = static_cast<int64_t>(sequence.tokens.size());
  const int64_t too_many = sequence.length() - num_known;
  if (too_many > 0 && !sequence.state->Rewind(too_many).ok()) sequence.state.reset();
}

}  // namespace

bool Answers::Take(Sequence& sequence, const model::ChosenToken& token) const {
  if (token.fault != ops::kNoFault) {
    sequence.sampled.emplace_back(Error(token.fault == core_.model.config().vocab_size
                                            ? sequence.sampler.NoChoice()
                                            : sequence.sampler.BadLogit(token.fault, "NaN or infinite")));
    return false;
  }
  sequence.sampler.Record(token.id);
  sequence.sampled.emplace_back(
      sampling::SampledToken{.id = token.id, .logprob = token.logprob, .top = token.top});
  if (sequence.request.stop_tokens.contains(token.id)) return false;
  if (sequence.request.constraint != nullptr) sequence.request.constraint->Accept(token.id);
  return true;
}

void Answers::Finish(Sequence& sequence, FinishReason reason, Status status, int32_t stop_token,
                     std::vector<Event>& events) {
  TakeBack(sequence);
  // Rows that a cancelled prompt has read count too: the client may come back with it.
  if (reason != FinishReason::kError) keeper_.Keep(sequence);
  // Memory that is lacking comes back; a full queue is another matter.
  if (status.code() == StatusCode::kResourceExhausted)
    status = Status(StatusCode::kUnavailable, status.message());
  Event finished = {.request = sequence.id,
                    .kind = Event::Kind::kFinished,
                    .finish_reason = reason,
                    .stop_token = stop_token,
                    .status = std::move(status)};
  if (sequence.publication != nullptr && (reason == FinishReason::kStop || reason == FinishReason::kLength))
    core_.publishing.push_back({std::move(finished), std::move(sequence.publication)});
  else
    events.push_back(std::move(finished));
  sequence.finished = true;
  sequence.state.reset();
}

void Answers::EndPublished(std::vector<Event>& events) {
  std::erase_if(core_.publishing, [&](EngineCore::Publishing& publishing) {
    const std::optional<int64_t> num_tokens =
        publishing.cancelled ? 0 : core_.options.prefix_disk->NumPublished(*publishing.publication);
    if (!num_tokens) return false;
    ++(*num_tokens > 0 ? core_.stats.num_published : core_.stats.num_not_published);
    publishing.finished.num_published_tokens = *num_tokens;
    events.push_back(std::move(publishing.finished));
    return true;
  });
}

void Answers::DropEnded(std::vector<Event>& events) {
  const std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now();
  const auto end = [&](Sequence& sequence) {
    if (sequence.finished) return;  // By a step that was abandoned.
    if (sequence.abandoned) {
      Finish(sequence, FinishReason::kError, ResourceExhausted("memory ran out; try again later"), -1,
             events);
    } else if (sequence.cancelled) {
      Finish(sequence, FinishReason::kCancelled, {}, -1, events);
    } else if (sequence.request.deadline && now >= *sequence.request.deadline) {
      Finish(sequence, FinishReason::kError,
             Status(StatusCode::kDeadlineExceeded,
                    fmt::format("request: its time ran out after {} prompt and {}",
                                std::min(sequence.length(), sequence.num_prompt_tokens),
                                Counted(sequence.num_output_tokens(), "output token"))),
             -1, events);
    }
  };
  for (const auto& sequence : core_.running) end(*sequence);
  for (const auto& sequence : core_.waiting) end(*sequence);
  core_.DropFinished();
  std::erase_if(core_.waiting, [](const auto& sequence) { return sequence->finished; });
}

void Answers::AdvanceBy(Sequence& sequence, Result<sampling::SampledToken>& token,
                        std::vector<Event>& events) {
  if (!token) {
    Finish(sequence, FinishReason::kError, token.error(), -1, events);
    return;
  }
  if (sequence.request.stop_tokens.contains(token->id)) {
    Finish(sequence, FinishReason::kStop, {}, token->id, events);
    return;
  }
  sequence.tokens.push_back(token->id);
  ++core_.stats.num_output_tokens;
  events.push_back({.request = sequence.id, .kind = Event::Kind::kToken, .token = std::move(*token)});
  if (sequence.num_output_tokens() >= sequence.max_tokens)
    Finish(sequence, FinishReason::kLength, {}, -1, events);
}

void Answers::Advance(Sequence& sequence, std::vector<Event>& events) {
  ++core_.stats.num_decode_steps;
  std::vector<Result<sampling::SampledToken>> sampled = std::exchange(sequence.sampled, {});
  if (const Status status = speculator_.RecordSampled(sequence, std::ssize(sampled)); !status.ok())
    return Fail(sequence, status, events);
  for (Result<sampling::SampledToken>& token : sampled) {
    AdvanceBy(sequence, token, events);
    if (sequence.finished) return;
  }
}

}  // namespace dsv4::engine
