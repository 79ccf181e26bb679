// Model, text side and engine of one chat, and its runs.
#include "apps/shared/chat_runtime.h"

#include <utility>

#include "apps/shared/model_source.h"
#include "apps/shared/speculation_flag.h"
#include "apps/shared/verify.h"
#include "session/answer_shape.h"
#include "session/prompt.h"

namespace dsv4::apps {
namespace {

// Cache for the turns of one conversation.
constexpr int64_t kPrefixCacheBytes = int64_t{1} << 30;

}  // namespace

Result<std::unique_ptr<ChatRuntime>> ChatRuntime::Load(const Options& options, const LoadCallback& progress) {
  auto runtime = std::unique_ptr<ChatRuntime>(new ChatRuntime());
  DSV4_ASSIGN_OR_RETURN(const ModelSource source, ModelSource::Find(options.model));
  DSV4_ASSIGN_OR_RETURN(const std::string directory, source.RequireTextDirectory());
  DSV4_TRY(source.CheckHasText());
  DSV4_ASSIGN_OR_RETURN(runtime->text_, options.raw ? session::TextModel::LoadRaw(directory)
                                                    : session::TextModel::Load(directory, options.revision));
  session::TextModel& text = *runtime->text_;
  if (source.synthetic()) text.card = {};  // The card is of another model.
  DSV4_ASSIGN_OR_RETURN(const ops::Backend backend, options.make_backend(options.model));
  runtime->backend_name_ = backend.name;
  ModelFlags flags = options.model;
  WantDrafter(options.speculation, flags);
  DSV4_ASSIGN_OR_RETURN(runtime->model_, LoadModel(flags, source, backend, progress));
  const model::ModelConfig& config = runtime->model_->config();
  if (text.special) session::WarnOfOtherBos(config.bos_token_ids, *text.special);
  DSV4_TRY(text.SetVocabSize(config.vocab_size, source.name()));
  if (options.verify_every > 0) {
    DSV4_ASSIGN_OR_RETURN(runtime->verifier_,
                          MakeVerifier(options.model, source, *runtime->model_, options.verify_every));
  }
  if (!options.dump_path.empty()) {
    DSV4_ASSIGN_OR_RETURN(runtime->dump_, diag::DumpWriter::Create(*backend.context, options.dump_path));
  }
  runtime->engine_ = std::make_unique<engine::Engine>(
      *runtime->model_,
      engine::EngineOptions{.prefix_cache_bytes = kPrefixCacheBytes,
                            .watcher = runtime->verifier_.get(),
                            .speculation = SpeculationOf(options.speculation, *runtime->model_),
                            .observer = runtime->dump_.get()},
      text.AllowedTokens());
  return runtime;
}

std::string ChatRuntime::NoticeOn(std::span<const chat::Message> messages) const {
  return text_->card.NoticeOn(tokenizer(), messages);
}

Status ChatRuntime::FinishDump() { return dump_ != nullptr ? dump_->Finish() : Status(); }

Result<Generation> ChatRuntime::Respond(std::span<const chat::Message> messages, const Ask& ask) {
  DSV4_ASSIGN_OR_RETURN(
      session::Prompt prompt,
      session::MakePrompt(*text_, messages, session::RenderOptionsFor(*text_, ask.mode, ask.effort)));
  std::vector<chat::JsonValue> tools;
  for (const chat::Message& message : messages) {
    for (const auto* list : {&message.request_tools, &message.tools})
      tools.insert(tools.end(), list->begin(), list->end());
  }
  const session::AnswerFormat format = session::ChatFormat(prompt, tools, ask.stop);
  return Run(std::move(prompt.ids), format, ask);
}

Result<Generation> ChatRuntime::Continue(const std::string& text, const Ask& ask) {
  DSV4_ASSIGN_OR_RETURN(std::vector<int32_t> ids, text_->tokenizer.Encode(text));
  return Run(std::move(ids), {.stop = ask.stop}, ask);
}

Result<Generation> ChatRuntime::Run(std::vector<int32_t> prompt, const session::AnswerFormat& format,
                                    const Ask& ask) {
  DSV4_ASSIGN_OR_RETURN(engine::Request request, session::MakeRequest(*text_, std::move(prompt), ask));
  if (ask.rule) {
    DSV4_ASSIGN_OR_RETURN(request.constraint,
                          session::MakeRuleConstraint(*text_, format.parser.starts_in_reasoning, *ask.rule));
  }
  if (ask.make_constraint) request.constraint = ask.make_constraint();
  return session::Generate(
      *engine_, *text_, std::move(request), format,
      {.on_prefill = ask.on_prefill, .on_delta = ask.on_delta, .interrupted = ask.interrupted});
}

}  // namespace dsv4::apps
