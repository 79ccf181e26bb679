// Reader of an answer's tokens: text, deltas, counts, log-probabilities and its end.
#include "session/answer_reader.h"

#include <iterator>
#include <utility>

namespace dsv4::session {

AnswerFormat ChatFormat(const Prompt& prompt, const std::vector<chat::JsonValue>& tools,
                        std::vector<std::string> stop) {
  return {.is_chat = true,
          .parser = {.starts_in_reasoning = prompt.rendered.ends_in_reasoning,
                     .tools_active = !tools.empty(),
                     .accept_damaged_tags = true,
                     .stop_strings = std::move(stop),
                     .tools = chat::ToolSchemas(tools)}};
}

AnswerReader::AnswerReader(const TextModel& text, const AnswerFormat& format)
    : text_(text),
      decoder_(text.tokenizer),
      filter_(format.stop),
      parallel_calls_(format.parallel_calls),
      wants_tokens_(format.wants_tokens),
      min_tokens_(format.min_tokens),
      in_reasoning_(format.is_chat && format.parser.starts_in_reasoning) {
  if (format.is_chat) parser_.emplace(*text.profile, format.parser);
}

const std::string& AnswerReader::sampled_calls() const {
  static const std::string none;
  // The model should not see its own slips again.
  return parser_ && !parser_->damaged() ? parser_->sampled_calls() : none;
}

void AnswerReader::Count(sampling::SampledToken token) {
  ++num_output_tokens_;
  const bool closes = in_reasoning_ && token.id == text_.special->think_end;
  if (in_reasoning_) ++num_reasoning_tokens_;
  if (closes) in_reasoning_ = false;
  if (wants_tokens_) tokens_.ids.push_back(token.id);
  if (wants_tokens_ && !closes)
    (in_reasoning_ ? tokens_.reasoning : tokens_.content).push_back(std::move(token));
}

void AnswerReader::ReadText(std::string_view text, std::vector<chat::Delta>& deltas) {
  if (parser_) {
    for (chat::Delta& delta : parser_->Feed(text)) {
      deltas.push_back(std::move(delta));
      if (!parallel_calls_ && deltas.back().kind == chat::Delta::Kind::kToolCallEnd) {
        done_ = true;
        deltas.push_back({.kind = chat::Delta::Kind::kDone, .finish_reason = chat::FinishReason::kToolCalls});
        return;
      }
    }
    if (parser_->done()) End(chat::EndCause::kStop, deltas);
    return;
  }
  std::string certain;
  const bool stopped = filter_.Feed(text, certain);
  if (!certain.empty()) deltas.push_back({.kind = chat::Delta::Kind::kContent, .text = std::move(certain)});
  if (stopped) End(chat::EndCause::kStop, deltas);
}

void AnswerReader::End(chat::EndCause cause, std::vector<chat::Delta>& deltas) {
  if (std::exchange(done_, true)) return;
  if (parser_) {
    for (chat::Delta& delta : parser_->Finish(cause)) deltas.push_back(std::move(delta));
    return;
  }
  std::string rest;
  if (filter_.found().empty()) filter_.Flush(rest);
  if (!rest.empty()) deltas.push_back({.kind = chat::Delta::Kind::kContent, .text = std::move(rest)});
  deltas.push_back({.kind = chat::Delta::Kind::kDone,
                    .text = filter_.found(),
                    .finish_reason = cause == chat::EndCause::kLength ? chat::FinishReason::kLength
                                                                      : chat::FinishReason::kStop});
}

std::vector<chat::Delta> AnswerReader::Feed(sampling::SampledToken token) {
  std::vector<chat::Delta> deltas;
  if (done_) return deltas;
  const std::string text = decoder_.Append(token.id);
  Count(std::move(token));
  if (min_tokens_ > 0) {
    const bool may_end = num_output_tokens_ >= min_tokens_;
    filter_.SetActive(may_end);
    if (parser_) parser_->SetStopsActive(may_end);
  }
  ReadText(text, deltas);
  return deltas;
}

std::vector<chat::Delta> AnswerReader::Finish(chat::EndCause cause) {
  std::vector<chat::Delta> deltas;
  if (done_) return deltas;
  if (const std::string rest = decoder_.Finish(); !rest.empty()) ReadText(rest, deltas);
  End(cause, deltas);
  return deltas;
}

std::vector<chat::Delta> AnswerReader::Read(engine::Event event) {
  if (done_) return {};
  switch (event.kind) {
    case engine::Event::Kind::kAdmitted:
      admitted_ = true;
      num_cached_tokens_ = event.num_cached_tokens;
      return {};
    case engine::Event::Kind::kPrefill:
      return {};
    case engine::Event::Kind::kPromptScored:
      prompt_scores_.insert(prompt_scores_.end(), std::make_move_iterator(event.scored.begin()),
                            std::make_move_iterator(event.scored.end()));
      return {};
    case engine::Event::Kind::kToken:
      return Feed(std::move(event.token));
    case engine::Event::Kind::kFinished:
      break;
  }
  switch (event.finish_reason) {
    case engine::FinishReason::kStop:
      return Finish(chat::EndCause::kStop);
    case engine::FinishReason::kLength:
      return Finish(chat::EndCause::kLength);
    case engine::FinishReason::kCancelled:
      status_ = Status(StatusCode::kUnavailable, "the server is stopping");
      break;
    case engine::FinishReason::kError:
      status_ = event.status;
      break;
  }
  done_ = true;
  return {};
}

}  // namespace dsv4::session
