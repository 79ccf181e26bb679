#include "apps/shared/generation.h"

#include <chrono>
#include <utility>

#include "tokenizer/stream_decoder.h"

namespace dsv4::apps {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The events of one request, turned into a Generation.
class Driver {
 public:
  Driver(engine::Engine& engine, const tokenizer::Tokenizer& tokenizer, const GenerationCallbacks& callbacks)
      : engine_(engine), decoder_(tokenizer), callbacks_(callbacks) {}

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
    generation_.decode_seconds = SecondsSince(first_token_time_);
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
        if (stopped_) break;  // Of the step in which the text ended.
        generation_.tokens.push_back(std::move(event.token));
        OnText(decoder_.Append(generation_.tokens.back().id));
        break;
      case engine::Event::Kind::kFinished:
        OnFinished(event);
        break;
    }
  }

  void OnPrefill(const engine::Event& event) {
    const auto num_prompt_tokens = static_cast<int64_t>(generation_.prompt_token_ids.size());
    if (callbacks_.on_prefill) callbacks_.on_prefill(event.num_prompt_tokens_done, num_prompt_tokens);
    if (event.num_prompt_tokens_done < num_prompt_tokens) return;
    first_token_time_ = Clock::now();
    generation_.prefill_seconds = SecondsSince(start_);
  }

  void OnText(const std::string& text) {
    generation_.text += text;
    if (stopped_ || text.empty() || callbacks_.on_text(text)) return;
    stopped_ = true;
    engine_.Cancel(id_);
  }

  void OnFinished(engine::Event& event) {
    OnText(decoder_.Finish());
    finished_ = true;
    status_ = event.status;
    generation_.finish_reason = stopped_ ? engine::FinishReason::kStop : event.finish_reason;
  }

  engine::Engine& engine_;
  tokenizer::StreamDecoder decoder_;
  const GenerationCallbacks& callbacks_;
  Generation generation_;
  engine::RequestId id_ = 0;
  Clock::time_point start_ = Clock::now();
  Clock::time_point first_token_time_ = start_;
  bool stopped_ = false;
  bool finished_ = false;
  Status status_;
};

}  // namespace

Result<Generation> Generate(engine::Engine& engine, const tokenizer::Tokenizer& tokenizer,
                            engine::Request request, const GenerationCallbacks& callbacks) {
  return Driver(engine, tokenizer, callbacks).Run(std::move(request));
}

}  // namespace dsv4::apps
