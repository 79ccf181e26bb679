#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/scheduler.h"

namespace dsv4::engine {

struct Engine::Sequence {
  RequestId id = 0;
  std::vector<int32_t> tokens;  // Prompt and output.
  int64_t num_prompt_tokens = 0;
  int64_t max_tokens = 0;
  std::set<int32_t> stop_tokens;
  sampling::Sampler sampler;
  std::optional<kv::SequenceState> state;  // Absent while waiting, unless the request brought a prefix.
  bool cancelled = false;
  bool finished = false;

  int64_t num_pending() const { return static_cast<int64_t>(tokens.size()) - state->length(); }
  int64_t num_output_tokens() const { return static_cast<int64_t>(tokens.size()) - num_prompt_tokens; }
};

Engine::Engine(model::Model& model, EngineOptions options, std::vector<uint8_t> allowed_tokens)
    : model_(model), options_(options), allowed_tokens_(std::move(allowed_tokens)) {}

Engine::~Engine() = default;

Result<RequestId> Engine::Submit(Request request) {
  const auto& config = model_.config();
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (prompt_tokens == 0) return Error(InvalidArgument("prompt: got no tokens, wanted at least one"));
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= config.vocab_size) {
      return Error(
          InvalidArgument(fmt::format("prompt: token id {}, wanted 0..{}", token, config.vocab_size - 1)));
    }
  }
  if (prompt_tokens >= config.max_position_embeddings) {
    return Error(OutOfRange(fmt::format("prompt: {} tokens leave no room for an answer in a context of {}",
                                        prompt_tokens, config.max_position_embeddings)));
  }
  if (request.max_tokens <= 0) {
    return Error(InvalidArgument(fmt::format("max_tokens: got {}, wanted 1 or more", request.max_tokens)));
  }
  DSV4_TRY(sampling::ValidateSamplingParams(request.sampling, config.vocab_size));
  if (request.prefix && request.prefix->length() >= prompt_tokens) {
    return Error(InvalidArgument(fmt::format("prefix: holds {} tokens, wanted fewer than the prompt's {}",
                                             request.prefix->length(), prompt_tokens)));
  }

  auto sequence = std::make_unique<Sequence>(Sequence{
      .id = next_id_++,
      .tokens = std::move(request.prompt),
      .num_prompt_tokens = prompt_tokens,
      .max_tokens = std::min(request.max_tokens, config.max_position_embeddings - prompt_tokens),
      .stop_tokens = std::move(request.stop_tokens),
      .sampler = sampling::Sampler(request.sampling, allowed_tokens_, request.num_logprobs),
      .state = std::move(request.prefix),
  });
  sequence->sampler.SeePrompt(sequence->tokens);
  waiting_.push_back(std::move(sequence));
  return waiting_.back()->id;
}

void Engine::Cancel(RequestId id) {
  for (const auto& sequence : waiting_) {
    if (sequence->id == id) sequence->cancelled = true;
  }
  for (const auto& sequence : running_) {
    if (sequence->id == id) sequence->cancelled = true;
  }
}

bool Engine::idle() const { return waiting_.empty() && running_.empty(); }

Result<kv::SequenceState> Engine::ForkState(RequestId id) const {
  for (const auto& sequence : running_) {
    if (sequence->id == id) return sequence->state->Fork();
  }
  return Error(NotFound(fmt::format("request {}: not running", id)));
}

void Engine::Finish(Sequence& sequence, FinishReason reason, Status status, int32_t stop_token,
                    std::vector<Event>& events) {
  sequence.finished = true;
  if (sequence.state && sequence.state->poisoned()) sequence.state.reset();
  events.push_back({.request = sequence.id,
                    .kind = Event::Kind::kFinished,
                    .finish_reason = reason,
                    .stop_token = stop_token,
                    .status = std::move(status),
                    .state = std::move(sequence.state)});
}

void Engine::Admit(std::vector<Event>& events) {
  while (!waiting_.empty()) {
    Sequence& next = *waiting_.front();
    if (next.cancelled) {
      Finish(next, FinishReason::kCancelled, {}, -1, events);
      waiting_.pop_front();
      continue;
    }
    if (running_.size() >= static_cast<size_t>(options_.max_sequences)) return;
    if (!next.state) {
      Result<kv::SequenceState> state = model_.NewSequence();
      if (!state) {
        // Out of memory with others running: wait for one of them to finish. Alone there is nothing to wait for.
        if (!running_.empty() && state.error().code() == StatusCode::kResourceExhausted) return;
        Finish(next, FinishReason::kError, state.error(), -1, events);
        waiting_.pop_front();
        continue;
      }
      next.state = std::move(*state);
    }
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

void Engine::Advance(Sequence& sequence, std::span<const float> logits, std::vector<Event>& events) {
  Result<sampling::SampledToken> token = sequence.sampler.Sample(logits);
  if (!token) {
    Finish(sequence, FinishReason::kError, token.error(), -1, events);
    return;
  }
  if (sequence.stop_tokens.contains(token->id)) {
    Finish(sequence, FinishReason::kStop, {}, token->id, events);
    return;
  }
  sequence.tokens.push_back(token->id);
  events.push_back({.request = sequence.id, .kind = Event::Kind::kToken, .token = std::move(*token)});
  if (sequence.num_output_tokens() >= sequence.max_tokens)
    Finish(sequence, FinishReason::kLength, {}, -1, events);
}

std::vector<Event> Engine::Step() {
  std::vector<Event> events;
  for (const auto& sequence : running_) {
    if (sequence->cancelled) Finish(*sequence, FinishReason::kCancelled, {}, -1, events);
  }
  std::erase_if(running_, [](const auto& sequence) { return sequence->finished; });
  Admit(events);

  std::vector<Pending> pending;
  for (const auto& sequence : running_) pending.push_back({sequence->num_pending()});
  const std::vector<ScheduledChunk> schedule = ScheduleStep(pending, options_.max_step_tokens);
  if (schedule.empty()) return events;

  std::vector<model::SequenceChunk> batch;
  for (const ScheduledChunk& chunk : schedule) {
    Sequence& sequence = *running_[chunk.sequence];
    const bool last = chunk.num_tokens == pending[chunk.sequence].num_tokens;
    batch.push_back({.state = &*sequence.state,
                     .tokens = std::span(sequence.tokens)
                                   .subspan(static_cast<size_t>(sequence.state->length()),
                                            static_cast<size_t>(chunk.num_tokens)),
                     .logits = last ? model::LogitsRows::kLast : model::LogitsRows::kNone});
  }

  const Result<model::StepOutput> output = model_.Step(batch);
  for (size_t i = 0; i < schedule.size(); ++i) {
    Sequence& sequence = *running_[schedule[i].sequence];
    if (!output) {
      Finish(sequence, FinishReason::kError, output.error(), -1, events);
      continue;
    }
    if (sequence.num_output_tokens() == 0) {
      events.push_back({.request = sequence.id,
                        .kind = Event::Kind::kPrefill,
                        .num_prompt_tokens_done = sequence.state->length()});
    }
    if (batch[i].logits == model::LogitsRows::kLast) Advance(sequence, output->Row(i, 0), events);
  }
  std::erase_if(running_, [](const auto& sequence) { return sequence->finished; });
  return events;
}

}  // namespace dsv4::engine
