// GenerationReply: a reply that is being generated. Joins the engine's events, the readers of the choices and
// the writer of the dialect. Destroying it cancels what is unfinished.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_thread.h"
#include "server/api/answer_writer.h"
#include "server/observe/metrics.h"
#include "server/observe/trace_exporter.h"

namespace dsv4::server {

class GenerationReply final : public Reply {
 public:
  struct Choice {
    std::unique_ptr<engine::Generation> generation;
    session::AnswerReader reader;
    std::chrono::steady_clock::time_point last_token = {};
    int64_t num_tokens_seen = 0;
  };
  // `metrics` and `traces` (may be null) outlive this. `trace` has what is known of the request; its id is
  // for the log.
  GenerationReply(std::vector<Choice> choices, std::unique_ptr<AnswerWriter> writer,
                  int64_t num_prompt_tokens, Metrics& metrics, TraceExporter* traces, RequestTrace trace);
  ~GenerationReply() override;

  void Advance(ReplyOutput& out) override;
  void OnProgress(std::function<void()> wake) override;
  std::string_view KeepAlive() const override { return writer_->KeepAlive(); }
  void Cut(ReplyOutput& out) override;
  bool IsTraced() const override { return true; }

 private:
  Usage CurrentUsage() const;
  void ReadChoice(size_t index, ReplyOutput& out);
  void NoteTokens(Choice& choice);
  void Fail(const Status& status, ReplyOutput& out);
  void End(ReplyOutput& out, std::string_view reason);

  std::vector<Choice> choices_;
  std::unique_ptr<AnswerWriter> writer_;
  int64_t num_prompt_tokens_;
  Metrics& metrics_;
  TraceExporter* traces_;
  RequestTrace trace_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double first_token_seconds_ = -1.0;
  bool begun_ = false;
  bool ended_ = false;
};

}  // namespace dsv4::server
