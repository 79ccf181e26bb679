// Loop that drives an engine for one request and delivers what its answer says.
#include "session/generate.h"

#include <chrono>
#include <optional>
#include <utility>

namespace dsv4::session {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The events of one request, turned into a Generation.
class Driver {
 public:
  Driver(engine::Engine& engine, const TextModel& text, const AnswerFormat& format,
         const GenerationCallbacks& callbacks)
      : engine_(engine), text_(text), reader_(text, format), callbacks_(callbacks) {}

  Result<Generation> Run(engine::Request request) {
    generation_.prompt_token_ids = request.prompt;
    DSV4_ASSIGN_OR_RETURN(id_, engine_.Submit(std::move(request)));
    while (!finished_) {
      if (callbacks_.interrupted && callbacks_.interrupted()) engine_.Cancel(id_);
      const size_t num_tokens = generation_.tokens.size();
      for (engine::Event& event : engine_.Step()) Handle(event);
      if (generation_.tokens.size() > num_tokens) ++generation_.num_steps;
    }
    if (!status_.ok()) return Error(std::move(status_));
    if (first_token_time_)
      generation_.decode_seconds = SecondsSince(*first_token_time_);
    else
      generation_.prefill_seconds = SecondsSince(start_);
    std::vector<int32_t> ids;
    for (const sampling::SampledToken& token : generation_.tokens) ids.push_back(token.id);
    generation_.text = text_.tokenizer.Decode(ids);
    generation_.num_reasoning_tokens = reader_.num_reasoning_tokens();
    generation_.completion = collector_.Take();
    return std::move(generation_);
  }

 private:
  void Handle(engine::Event& event) {
    switch (event.kind) {
      case engine::Event::Kind::kAdmitted:
        generation_.num_cached_tokens = event.num_cached_tokens;
        break;
      case engine::Event::Kind::kPromptScored:
        break;
      case engine::Event::Kind::kPrefill:
        OnPrefill(event);
        break;
      case engine::Event::Kind::kToken:
        if (reader_.done()) break;  // Ends in the step in which the text ended.
        generation_.tokens.push_back(event.token);
        Deliver(reader_.Feed(std::move(event.token)));
        if (reader_.done()) engine_.Cancel(id_);
        break;
      case engine::Event::Kind::kFinished:
        OnFinished(event);
        break;
    }
  }

  void OnPrefill(const engine::Event& event) {
    const auto num_prompt_tokens = static_cast<int64_t>(generation_.prompt_token_ids.size());
    generation_.num_prompt_tokens_done = event.num_prompt_tokens_done;
    if (callbacks_.on_prefill) callbacks_.on_prefill(event.num_prompt_tokens_done, num_prompt_tokens);
    if (event.num_prompt_tokens_done < num_prompt_tokens) return;
    first_token_time_ = Clock::now();
    generation_.prefill_seconds = SecondsSince(start_);
  }

  void OnFinished(engine::Event& event) {
    finished_ = true;
    status_ = event.status;
    generation_.finish_reason = reader_.done() ? engine::FinishReason::kStop : event.finish_reason;
    if (!status_.ok()) return;
    Deliver(reader_.Finish(event.finish_reason == engine::FinishReason::kLength ? chat::EndCause::kLength
                                                                                : chat::EndCause::kStop));
  }

  void Deliver(const std::vector<chat::Delta>& deltas) {
    for (const chat::Delta& delta : deltas) {
      collector_.Add(delta);
      if (callbacks_.on_delta) callbacks_.on_delta(delta);
    }
  }

  engine::Engine& engine_;
  const TextModel& text_;
  AnswerReader reader_;
  const GenerationCallbacks& callbacks_;
  chat::CompletionCollector collector_;
  Generation generation_;
  engine::RequestId id_ = 0;
  Clock::time_point start_ = Clock::now();
  std::optional<Clock::time_point> first_token_time_;  // Once the prompt has been read.
  bool finished_ = false;
  Status status_;
};

}  // namespace

Result<Generation> Generate(engine::Engine& engine, const TextModel& text, engine::Request request,
                            const AnswerFormat& format, const GenerationCallbacks& callbacks) {
  return Driver(engine, text, format, callbacks).Run(std::move(request));
}

}  // namespace dsv4::session
