// AnswerReader: one answer, from its tokens to what it says: deltas of text, counts of tokens,
// log-probabilities. A whole answer and a streamed one go through the same reader, so they cannot differ. Nor
// can those of `run`, `serve` and the C API.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chat/completion_parser.h"
#include "chat/delta.h"
#include "chat/stop_filter.h"
#include "engine/request.h"
#include "session/prompt.h"
#include "session/text_model.h"
#include "tokenizer/stream_decoder.h"

namespace dsv4::session {

// How the text of an answer is to be read.
struct AnswerFormat {
  bool is_chat = false;
  chat::ParserOptions parser = {};     // Chat.
  bool parallel_calls = true;          // Chat. False: the first call ends the answer.
  std::vector<std::string> stop = {};  // Otherwise: strings that end it.
  bool wants_tokens = false;           // See TakeTokens.
  int64_t min_tokens = 0;              // No stop string ends the answer before so many.
};

// The answer to `prompt`, a chat in which the model may call `tools`.
AnswerFormat ChatFormat(const Prompt& prompt, const std::vector<chat::JsonValue>& tools,
                        std::vector<std::string> stop);

struct AnswerTokens {
  std::vector<sampling::SampledToken> reasoning;  // Without the marker that closes it.
  std::vector<sampling::SampledToken> content;    // All after that, tool markup included.
  std::vector<int32_t> ids;                       // Ids of all, that marker included, in their order.
};

class AnswerReader {
 public:
  // `text` outlives this and stays where it is.
  AnswerReader(const TextModel& text, const AnswerFormat& format);

  // Deltas of the next token. Nothing any more after done().
  std::vector<chat::Delta> Feed(sampling::SampledToken token);
  // The engine has no more tokens: what was held back, and kDone unless it is out.
  std::vector<chat::Delta> Finish(chat::EndCause cause);
  // The same from the engine's events.
  std::vector<chat::Delta> Read(engine::Event event);

  // The last delta (kDone) is out, or the generation failed or was cancelled (Read). The engine may still be
  // at work: cancel it.
  bool done() const { return done_; }
  // Why it failed. Cancelled: Unavailable.
  const Status& status() const { return status_; }
  // The text of the tool block as sampled; see CompletionParser::sampled_calls. Empty where its spelling is
  // not the model's format.
  const std::string& sampled_calls() const;
  // Tokens since the last call, where AnswerFormat::wants_tokens.
  AnswerTokens TakeTokens() { return std::exchange(tokens_, {}); }

  // Scores of the prompt's tokens behind the first, as far as they came.
  const std::vector<sampling::ScoredToken>& prompt_scores() const { return prompt_scores_; }

  // The engine has begun with the prompt; `num_cached_tokens` of it were there already.
  bool admitted() const { return admitted_; }
  int64_t num_cached_tokens() const { return num_cached_tokens_; }
  // engine::Event::num_published_tokens, once the engine has ended it.
  int64_t num_published_tokens() const { return num_published_tokens_; }
  int64_t num_output_tokens() const { return num_output_tokens_; }
  // Reasoning tokens of those; the marker that closes the reasoning is one.
  int64_t num_reasoning_tokens() const { return num_reasoning_tokens_; }

 private:
  void ReadText(std::string_view text, std::vector<chat::Delta>& deltas);
  void End(chat::EndCause cause, std::vector<chat::Delta>& deltas);
  void Count(sampling::SampledToken token);

  const TextModel& text_;
  tokenizer::StreamDecoder decoder_;
  std::optional<chat::CompletionParser> parser_;  // Chat.
  chat::StopFilter filter_;                       // Otherwise.
  bool parallel_calls_ = true;
  bool wants_tokens_ = false;
  int64_t min_tokens_ = 0;
  bool in_reasoning_ = false;
  bool admitted_ = false;
  bool done_ = false;
  Status status_;
  AnswerTokens tokens_;
  std::vector<sampling::ScoredToken> prompt_scores_;
  int64_t num_cached_tokens_ = 0;
  int64_t num_published_tokens_ = 0;
  int64_t num_output_tokens_ = 0;
  int64_t num_reasoning_tokens_ = 0;
};

}  // namespace dsv4::session
