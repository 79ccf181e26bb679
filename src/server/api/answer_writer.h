// AnswerWriter: what a call's answer looks like in one dialect, streamed or whole. GenerationReply calls it
// in this order: Begin, then Write in any order of choices, each ending with a kDone delta, then End. Fail
// may replace any of them and is the last call.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "chat/delta.h"
#include "server/http/http.h"
#include "session/answer_reader.h"

namespace dsv4::server {

struct Usage {
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = 0;  // Reused ones of those.
  int64_t num_output_tokens = 0;  // Over all choices, reasoning included.
  int64_t num_reasoning_tokens = 0;
  int64_t num_published_tokens = 0;  // engine::Event::num_published_tokens of the first choice.
};

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  virtual bool streamed() const = 0;
  virtual std::string_view content_type() const {
    return streamed() ? "text/event-stream" : "application/json";
  }
  // The prompts of the call, one for each group of choices, before all else.
  virtual void TakePrompt(std::span<const int32_t> /*prompt*/) {}
  // Each appends to `out` what can be sent; a whole answer appends all of it in End.
  virtual void Begin(const Usage& usage, std::string& out) = 0;
  // `tokens`: those since the last Write of this choice, when log-probabilities were asked for. `reader` is
  // the choice's.
  virtual void Write(size_t choice, const chat::Delta& delta, session::AnswerTokens tokens,
                     const session::AnswerReader& reader, std::string& out) = 0;
  virtual void End(const Usage& usage, std::string& out) = 0;
  // An error where there is no stream yet, as a whole body; else as the last event.
  virtual std::string ErrorBody(const Status& status) = 0;
  virtual void Fail(const Status& status, std::string& out) = 0;
  virtual std::string_view KeepAlive() const { return ": keep-alive\n\n"; }
};

}  // namespace dsv4::server
