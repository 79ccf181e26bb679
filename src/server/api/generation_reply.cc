// Reply that reads choices' events as they come and lets the dialect's writer put them in bytes.
#include "server/api/generation_reply.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "base/log.h"
#include "server/api/api_error.h"

namespace dsv4::server {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

GenerationReply::GenerationReply(std::vector<Choice> choices, std::unique_ptr<AnswerWriter> writer,
                                 int64_t num_prompt_tokens, Metrics& metrics, TraceExporter* traces,
                                 RequestTrace trace)
    : choices_(std::move(choices)),
      writer_(std::move(writer)),
      num_prompt_tokens_(num_prompt_tokens),
      metrics_(metrics),
      traces_(traces),
      trace_(std::move(trace)) {
  trace_.start = std::chrono::system_clock::now();
}

GenerationReply::~GenerationReply() {
  if (ended_) return;
  try {
    ReplyOutput nowhere;
    End(nowhere, "disconnected");
  } catch (const std::bad_alloc&) {  // It is then counted nowhere.
  }
}

void GenerationReply::OnProgress(std::function<void()> wake) {
  for (Choice& choice : choices_) choice.generation->OnEvents(wake);
}

Usage GenerationReply::CurrentUsage() const {
  Usage usage;
  usage.num_prompt_tokens = num_prompt_tokens_;
  usage.num_cached_tokens = choices_.front().reader.num_cached_tokens();
  for (const Choice& choice : choices_) {
    usage.num_output_tokens += choice.reader.num_output_tokens();
    usage.num_reasoning_tokens += choice.reader.num_reasoning_tokens();
  }
  return usage;
}

void GenerationReply::NoteTokens(Choice& choice) {
  const int64_t count = choice.reader.num_output_tokens() - choice.num_tokens_seen;
  if (count == 0) return;
  const Clock::time_point now = Clock::now();
  if (choice.num_tokens_seen > 0) {
    metrics_.OnTokens(count, Seconds(now - choice.last_token));
  } else if (first_token_seconds_ < 0.0) {
    first_token_seconds_ = Seconds(now - start_);
    trace_.first_token = std::chrono::system_clock::now();
    metrics_.OnFirstToken(first_token_seconds_);
  }
  choice.num_tokens_seen += count;
  choice.last_token = now;
}

void GenerationReply::ReadChoice(size_t index, ReplyOutput& out) {
  Choice& choice = choices_[index];
  for (engine::Event& event : choice.generation->Take()) {
    const std::vector<chat::Delta> deltas = choice.reader.Read(std::move(event));
    if (!begun_ && choice.reader.admitted()) {
      begun_ = true;
      trace_.admitted = std::chrono::system_clock::now();
      writer_->Begin(CurrentUsage(), out.body);
    }
    for (const chat::Delta& delta : deltas) {
      const bool takes_tokens = delta.kind == chat::Delta::Kind::kReasoning ||
                                delta.kind == chat::Delta::Kind::kContent ||
                                delta.kind == chat::Delta::Kind::kDone;
      writer_->Write(index, delta, takes_tokens ? choice.reader.TakeTokens() : session::AnswerTokens(),
                     choice.reader, out.body);
    }
    if (choice.reader.done()) break;
  }
  NoteTokens(choice);
  if (choice.reader.done()) choice.generation->Cancel();
}

void GenerationReply::End(ReplyOutput& out, std::string_view reason) {
  ended_ = true;
  out.done = true;
  const double seconds = Seconds(Clock::now() - start_);
  metrics_.OnFinished(reason, seconds);
  const Usage usage = CurrentUsage();
  if (traces_ != nullptr) {
    trace_.end = reason;
    trace_.finish = std::chrono::system_clock::now();
    trace_.num_prompt_tokens = usage.num_prompt_tokens;
    trace_.num_cached_tokens = usage.num_cached_tokens;
    trace_.num_output_tokens = usage.num_output_tokens;
    trace_.num_reasoning_tokens = usage.num_reasoning_tokens;
    if (trace_.http_status == 0 && reason != "disconnected") trace_.http_status = 200;
    traces_->Export(trace_);
  }
  LogInfo(
      fmt::format("request id={} end={} prompt_tokens={} cached_tokens={} output_tokens={} choices={} "
                  "first_token_seconds={:.3f} seconds={:.3f}",
                  trace_.request_id, reason, usage.num_prompt_tokens, usage.num_cached_tokens,
                  usage.num_output_tokens, choices_.size(), std::max(first_token_seconds_, 0.0), seconds));
}

void GenerationReply::Fail(const Status& status, ReplyOutput& out) {
  LogWarning(fmt::format("request id={} failed: {}", trace_.request_id, status.ToString()));
  if (writer_->streamed()) {
    writer_->Fail(status, out.body);
  } else {
    out.head = ErrorHead(HttpStatus(status));
    out.body = writer_->ErrorBody(status);
    trace_.http_status = out.head->status;
  }
  trace_.error = status.message();
  End(out, "error");
}

void GenerationReply::Cut(ReplyOutput& out) {
  if (!ended_) Fail(ServerStopping(), out);
}

void GenerationReply::Advance(ReplyOutput& out) {
  if (ended_) return;
  if (writer_->streamed() && !begun_)
    out.head = HttpHead{.content_type = std::string(writer_->content_type()), .streamed = true};
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (!choices_[i].reader.done()) ReadChoice(i, out);
    const Status& status = choices_[i].reader.status();
    if (status.ok()) continue;
    return Fail(status, out);
  }
  if (!std::all_of(choices_.begin(), choices_.end(),
                   [](const Choice& choice) { return choice.reader.done(); }))
    return;
  if (!writer_->streamed()) out.head = HttpHead{};
  writer_->End(CurrentUsage(), out.body);
  End(out, "done");
}

}  // namespace dsv4::server
