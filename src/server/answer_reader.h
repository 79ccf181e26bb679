// AnswerReader: one choice of a call, from engine events to what it says: deltas of text, counts of tokens, log-probabilities.
// A whole answer and a streamed one go through the same reader, so they cannot differ.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "chat/completion_parser.h"
#include "chat/delta.h"
#include "chat/stop_filter.h"
#include "engine/request.h"
#include "server/chat_call.h"
#include "server/served_model.h"
#include "tokenizer/stream_decoder.h"

namespace dsv4::server {

struct AnswerTokens {
  std::vector<sampling::SampledToken> reasoning;  // Without the marker that closes it.
  std::vector<sampling::SampledToken> content;    // All after that, tool markup included.
};

class AnswerReader {
 public:
  // `model` outlives this.
  AnswerReader(const ServedModel& model, const PreparedCall& call);

  // What the event says. Nothing any more after done().
  std::vector<chat::Delta> Read(engine::Event event);

  // The last delta (kDone) is out, or the generation failed (status()). The engine may still be at work: cancel it.
  bool done() const { return done_; }
  const Status& status() const { return status_; }
  // The text of the tool block as sampled; see CompletionParser::sampled_calls.
  const std::string& sampled_calls() const;
  // Tokens since the last call, when log-probabilities were asked for.
  AnswerTokens TakeTokens() { return std::exchange(tokens_, {}); }

  // The engine has begun with the prompt; `num_cached_tokens` of it were there already.
  bool admitted() const { return admitted_; }
  int64_t num_cached_tokens() const { return num_cached_tokens_; }
  int64_t num_output_tokens() const { return num_output_tokens_; }
  int64_t num_reasoning_tokens() const { return num_reasoning_tokens_; }

 private:
  void ReadText(std::string_view text, std::vector<chat::Delta>& deltas);
  void End(chat::EndCause cause, std::vector<chat::Delta>& deltas);
  void Count(sampling::SampledToken token);

  const ServedModel& model_;
  tokenizer::StreamDecoder decoder_;
  std::optional<chat::CompletionParser> parser_;  // Chat.
  chat::StopFilter filter_;                       // Otherwise.
  bool parallel_calls_ = true;
  bool wants_tokens_ = false;
  bool in_reasoning_ = false;
  bool admitted_ = false;
  bool done_ = false;
  Status status_;
  AnswerTokens tokens_;
  int64_t num_cached_tokens_ = 0;
  int64_t num_output_tokens_ = 0;
  int64_t num_reasoning_tokens_ = 0;
};

}  // namespace dsv4::server
