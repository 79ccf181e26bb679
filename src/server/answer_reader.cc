#include "server/answer_reader.h"

#include <utility>

namespace dsv4::server {

AnswerReader::AnswerReader(const ServedModel& model, const PreparedCall& call)
    : model_(model),
      decoder_(model.tokenizer),
      filter_(call.stop),
      parallel_calls_(call.parallel_calls),
      wants_tokens_(call.requests.front().num_logprobs >= 0),
      in_reasoning_(call.is_chat && call.parser.starts_in_reasoning) {
  if (call.is_chat) parser_.emplace(*model.profile, call.parser);
}

const std::string& AnswerReader::sampled_calls() const {
  static const std::string none;
  return parser_ ? parser_->sampled_calls() : none;
}

void AnswerReader::Count(sampling::SampledToken token) {
  ++num_output_tokens_;
  const bool closes = in_reasoning_ && token.id == model_.special.think_end;
  if (in_reasoning_) ++num_reasoning_tokens_;
  if (closes) in_reasoning_ = false;
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

std::vector<chat::Delta> AnswerReader::Read(engine::Event event) {
  std::vector<chat::Delta> deltas;
  if (done_) return deltas;
  switch (event.kind) {
    case engine::Event::Kind::kAdmitted:
      admitted_ = true;
      num_cached_tokens_ = event.num_cached_tokens;
      break;
    case engine::Event::Kind::kPrefill:
    case engine::Event::Kind::kPromptScored:
      break;
    case engine::Event::Kind::kToken: {
      const std::string text = decoder_.Append(event.token.id);
      Count(std::move(event.token));
      ReadText(text, deltas);
      break;
    }
    case engine::Event::Kind::kFinished:
      if (event.finish_reason == engine::FinishReason::kError ||
          event.finish_reason == engine::FinishReason::kCancelled) {
        done_ = true;
        status_ = event.finish_reason == engine::FinishReason::kError
                      ? event.status
                      : Status(StatusCode::kUnavailable, "the server is stopping");
        break;
      }
      if (const std::string rest = decoder_.Finish(); !rest.empty()) ReadText(rest, deltas);
      End(event.finish_reason == engine::FinishReason::kLength ? chat::EndCause::kLength
                                                               : chat::EndCause::kStop,
          deltas);
      break;
  }
  return deltas;
}

}  // namespace dsv4::server
