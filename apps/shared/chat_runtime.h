// Everything `run` needs of one model: tokenizer, chat format, stop set, weights and an engine.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/shared/model_flags.h"
#include "chat/message.h"
#include "chat/profile.h"
#include "diag/dump.h"
#include "diag/verifier.h"
#include "engine/engine.h"
#include "grammar/rules/content_rule.h"
#include "sampling/token_constraint.h"
#include "session/answer_options.h"
#include "session/generate.h"
#include "session/text_model.h"

namespace dsv4::apps {

using session::Generation;

class ChatRuntime {
 public:
  struct Options {
    ModelFlags model;
    std::string revision;  // Empty: detected from the model directory.
    bool raw = false;      // No chat: the tokenizer may lack the chat markers.
    // > 0: every so many-th decode token is computed again on the reference backend, which reads the same map of the checkpoint.
    int64_t verify_every = 0;
    speculation::Choice speculation = speculation::Choice::Off();
    std::string dump_path;  // Every tensor of the first answer goes into this new directory; empty: none.
    // Tests seed faults here.
    std::function<Result<ops::Backend>(const ModelFlags&)> make_backend = MakeBackend;
  };
  // Errors name the file or string at fault.
  static Result<std::unique_ptr<ChatRuntime>> Load(const Options& options, const LoadCallback& progress);

  // How one answer is asked for and shown. `sampling`, `max_tokens`, `stop` and more are those of AnswerOptions.
  struct Ask : session::AnswerOptions {
    chat::ThinkingMode mode = chat::ThinkingMode::kThinking;
    std::optional<std::string> effort;
    std::optional<grammar::ContentRule> rule;  // Rule for the content, behind the reasoning.
    // Makes what limits every token, instead of a rule. May be empty.
    std::function<std::unique_ptr<sampling::TokenConstraint>()> make_constraint;
    // Each may be empty; see session::GenerationCallbacks. In raw mode everything is content.
    std::function<void(int64_t, int64_t)> on_prefill;
    std::function<void(const chat::Delta&)> on_delta;
    std::function<bool()> interrupted;
  };

  // Renders the conversation, generates and parses. Reuses what earlier calls computed of the same prompt.
  Result<Generation> Respond(std::span<const chat::Message> messages, const Ask& ask);
  // Continues `text` as it is.
  Result<Generation> Continue(const std::string& text, const Ask& ask);

  // "cpu (avx2)", "cuda (NVIDIA H200)".
  const std::string& backend_name() const { return backend_name_; }
  const tokenizer::Tokenizer& tokenizer() const { return text_->tokenizer; }
  const model::Model& model() const { return *model_; }
  engine::EngineStats stats() const { return engine_->stats(); }
  // Null in raw mode.
  const chat::ChatProfile* profile() const { return text_->profile; }
  const session::TextModel& text() const { return *text_; }
  // ModelCard::NoticeOn, empty in raw mode and for random weights.
  std::string NoticeOn(std::span<const chat::Message> messages) const;
  // Null without verify_every.
  diag::Verifier* verifier() const { return verifier_.get(); }
  // Completes the files of dump_path; nothing is to do without it. Errors name the file.
  Status FinishDump();

 private:
  ChatRuntime() = default;
  Result<Generation> Run(std::vector<int32_t> prompt, const session::AnswerFormat& format, const Ask& ask);

  std::optional<session::TextModel> text_;
  std::string backend_name_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<diag::Verifier> verifier_;
  std::unique_ptr<diag::DumpWriter> dump_;
  std::unique_ptr<engine::Engine> engine_;
};

}  // namespace dsv4::apps
