#include "apps/shared/chat_runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "apps/shared/model_source.h"
#include "apps/shared/verify.h"
#include "base/json.h"
#include "base/log.h"
#include "base/read_file.h"
#include "chat/stop_filter.h"
#include "grammar/answer_grammar.h"
#include "grammar/constraint.h"

namespace dsv4::apps {
namespace {

// Our own field in generation_config.json; the release's files do not have it.
constexpr const char* kRevisionKey = "dsv4_chat_revision";

// Of the turns of one conversation.
constexpr int64_t kPrefixCacheBytes = int64_t{1} << 30;

chat::EndCause ToEndCause(engine::FinishReason reason) {
  return reason == engine::FinishReason::kLength ? chat::EndCause::kLength : chat::EndCause::kStop;
}

// A file that a model directory may lack. One that is there and cannot be read is an error: it would change the answers.
Result<std::optional<std::string>> ReadIfThere(const std::string& path) {
  Result<std::string> text = ReadFile(path, FileKind::kRegular, kMaxModelDocumentBytes);
  if (text) return std::move(*text);
  if (text.error().code() == StatusCode::kNotFound) return std::nullopt;
  return Error(text.error());
}

}  // namespace

Result<const chat::ChatProfile*> FindProfile(const std::string& directory, const std::string& option) {
  chat::RevisionFacts facts;
  if (!option.empty()) facts.option = option;
  DSV4_ASSIGN_OR_RETURN(const std::optional<std::string> text,
                        ReadIfThere(directory + "/generation_config.json"));
  if (text) {
    DSV4_ASSIGN_OR_RETURN(const Json json, ParseJson(*text, directory + "/generation_config.json"));
    if (json.contains(kRevisionKey) && json[kRevisionKey].is_string()) facts.metadata = json[kRevisionKey];
  }
  DSV4_ASSIGN_OR_RETURN(std::optional<std::string> encoder,
                        ReadIfThere(fmt::format("{}/{}", directory, chat::kEncoderFile)));
  if (encoder) facts.encoder_source = std::move(*encoder);
  return chat::DetectChatProfile(facts);
}

void WarnOfOtherBos(const model::ModelConfig& config, const tokenizer::SpecialTokens& special) {
  const std::vector<int64_t>& bos = config.bos_token_ids;
  if (bos.empty() || std::find(bos.begin(), bos.end(), special.begin_of_sentence) != bos.end()) return;
  LogWarning(fmt::format("config.json names {} as bos_token_id; {} of tokenizer.json is {}, which is used",
                         fmt::join(bos, ", "), tokenizer::kBeginOfSentence, special.begin_of_sentence));
}

std::vector<uint8_t> AllowedTokens(const tokenizer::Tokenizer& tokenizer, int64_t vocab_size) {
  std::vector<uint8_t> allowed(static_cast<size_t>(vocab_size));
  for (int64_t id = 0; id < vocab_size; ++id) {
    allowed[static_cast<size_t>(id)] = tokenizer.IsDefined(static_cast<tokenizer::TokenId>(id)) ? 1 : 0;
  }
  return allowed;
}

Status ChatRuntime::CheckEffort(const std::string& effort) const {
  if (effort.empty() || profile_ == nullptr) return {};
  std::vector<std::string_view> known;
  for (const chat::EffortLevel& level : profile_->efforts) {
    if (level.name == effort) return {};
    known.push_back(level.name);
  }
  return InvalidArgument(fmt::format("effort: got '{}', revision {} knows {}", effort, profile_->revision,
                                     fmt::join(known, ", ")));
}

Result<std::unique_ptr<ChatRuntime>> ChatRuntime::Load(const Options& options, const LoadCallback& progress) {
  auto runtime = std::unique_ptr<ChatRuntime>(new ChatRuntime());
  DSV4_ASSIGN_OR_RETURN(const ModelSource source, ModelSource::Find(options.model));
  DSV4_ASSIGN_OR_RETURN(const std::string directory, source.RequireTextDirectory());
  DSV4_ASSIGN_OR_RETURN(runtime->tokenizer_, tokenizer::Tokenizer::Load(directory + "/tokenizer.json"));
  if (options.raw) {
    for (const std::string_view marker : {tokenizer::kEndOfSentence, tokenizer::kUser}) {
      if (runtime->tokenizer_->FindToken(marker))
        DSV4_TRY(runtime->stop_set_.Add(*runtime->tokenizer_, marker));
    }
  } else {
    DSV4_ASSIGN_OR_RETURN(runtime->special_, tokenizer::SpecialTokens::Resolve(*runtime->tokenizer_));
    runtime->stop_set_ = tokenizer::StopSet::ForChat(*runtime->special_);
    DSV4_ASSIGN_OR_RETURN(runtime->profile_, FindProfile(directory, options.revision));
  }
  DSV4_ASSIGN_OR_RETURN(const ops::Backend backend, options.make_backend(options.model));
  DSV4_ASSIGN_OR_RETURN(runtime->model_, LoadModel(options.model, source, backend, progress));
  if (runtime->special_) WarnOfOtherBos(runtime->model_->config(), *runtime->special_);
  const int64_t vocab_size = runtime->model_->config().vocab_size;
  if (runtime->tokenizer_->num_ids() > vocab_size) {
    return Error(
        InvalidArgument(fmt::format("{}: tokenizer.json has ids up to {}, config.json a vocab_size of {}",
                                    source.name(), runtime->tokenizer_->num_ids() - 1, vocab_size)));
  }
  if (options.verify_every > 0) {
    DSV4_ASSIGN_OR_RETURN(runtime->verifier_, MakeVerifier(options.model, source, options.verify_every));
  }
  if (!options.dump_path.empty()) {
    DSV4_ASSIGN_OR_RETURN(runtime->dump_, diag::DumpWriter::Create(*backend.context, options.dump_path));
  }
  runtime->engine_ =
      std::make_unique<engine::Engine>(*runtime->model_,
                                       engine::EngineOptions{.prefix_cache_bytes = kPrefixCacheBytes,
                                                             .watcher = runtime->verifier_.get(),
                                                             .speculation = options.speculation,
                                                             .observer = runtime->dump_.get()},
                                       AllowedTokens(*runtime->tokenizer_, vocab_size));
  return runtime;
}

Status ChatRuntime::FinishDump() { return dump_ != nullptr ? dump_->Finish() : Status(); }

engine::Request ChatRuntime::MakeRequest(std::vector<int32_t> prompt, const Ask& ask) const {
  engine::Request request;
  request.prompt = std::move(prompt);
  request.sampling = ask.sampling;
  request.max_tokens = ask.max_tokens;
  request.num_logprobs = ask.num_logprobs;
  request.speculate = ask.speculate;
  for (const tokenizer::StopSet::Entry& entry : stop_set_.entries()) request.stop_tokens.insert(entry.id);
  return request;
}

Result<std::unique_ptr<sampling::TokenConstraint>> ChatRuntime::MakeConstraint(const Ask& ask,
                                                                               bool in_reasoning) {
  if (trie_ == nullptr) {
    DSV4_ASSIGN_OR_RETURN(trie_, grammar::TokenTrie::Create(*tokenizer_, {.think_end = special_->think_end}));
  }
  std::vector<tokenizer::TokenId> stop_ids;
  for (const tokenizer::StopSet::Entry& entry : stop_set_.entries()) stop_ids.push_back(entry.id);
  DSV4_ASSIGN_OR_RETURN(auto program, grammar::CompileAnswer({.starts_in_reasoning = in_reasoning,
                                                              .think_end = std::string(profile_->think_close),
                                                              .content = grammar::ContentKind::kJson,
                                                              .schema = *ask.schema,
                                                              .schema_label = "--json-schema"}));
  return std::make_unique<grammar::GrammarConstraint>(
      grammar::Matcher(std::move(program), trie_, std::move(stop_ids)));
}

Result<Generation> ChatRuntime::Run(engine::Request request, const Ask& ask,
                                    const std::function<bool(std::string_view)>& on_text) {
  const GenerationCallbacks callbacks = {
      .on_prefill = ask.on_prefill, .on_text = on_text, .interrupted = ask.interrupted};
  return Generate(*engine_, *tokenizer_, std::move(request), callbacks);
}

Result<ChatRuntime::Answer> ChatRuntime::Respond(std::span<const chat::Message> messages, const Ask& ask) {
  chat::RenderOptions render = {.mode = ask.mode, .effort = ask.effort, .null_is_empty = true};
  if (!render.effort && !profile_->default_effort.empty()) render.effort = profile_->default_effort;
  DSV4_ASSIGN_OR_RETURN(const chat::RenderedPrompt prompt, chat::RenderPrompt(*profile_, messages, render));
  std::vector<tokenizer::TextSpan> spans;
  for (const chat::Span& span : prompt.spans) spans.push_back({span.text, span.is_template});
  DSV4_ASSIGN_OR_RETURN(std::vector<tokenizer::TokenId> ids, tokenizer_->Encode(spans));

  std::vector<chat::JsonValue> tools;
  for (const chat::Message& message : messages)
    tools.insert(tools.end(), message.tools.begin(), message.tools.end());
  chat::CompletionParser parser(*profile_, {.starts_in_reasoning = prompt.ends_in_reasoning,
                                            .tools_active = !tools.empty(),
                                            .stop_strings = ask.stop,
                                            .tools = chat::ToolSchemas(tools)});
  chat::CompletionCollector collector;
  const auto deliver = [&](const std::vector<chat::Delta>& deltas) {
    for (const chat::Delta& delta : deltas) {
      collector.Add(delta);
      if (ask.on_delta) ask.on_delta(delta);
    }
  };
  engine::Request request = MakeRequest(std::move(ids), ask);
  if (ask.schema) {
    DSV4_ASSIGN_OR_RETURN(request.constraint, MakeConstraint(ask, prompt.ends_in_reasoning));
  }
  if (ask.make_constraint) request.constraint = ask.make_constraint();
  Answer answer;
  answer.starts_in_reasoning = prompt.ends_in_reasoning;
  DSV4_ASSIGN_OR_RETURN(answer.generation, Run(std::move(request), ask, [&](std::string_view text) {
                          deliver(parser.Feed(text));
                          return !parser.done();
                        }));
  deliver(parser.Finish(ToEndCause(answer.generation.finish_reason)));
  answer.completion = collector.Take();
  answer.cancelled = answer.generation.finish_reason == engine::FinishReason::kCancelled;
  return answer;
}

Result<ChatRuntime::Answer> ChatRuntime::Continue(const std::string& text, const Ask& ask) {
  DSV4_ASSIGN_OR_RETURN(std::vector<tokenizer::TokenId> ids, tokenizer_->Encode(text));
  chat::StopFilter filter(ask.stop);
  Answer answer;
  const auto deliver = [&](std::string content) {
    answer.completion.message.content += content;
    if (ask.on_delta && !content.empty()) {
      ask.on_delta({.kind = chat::Delta::Kind::kContent, .text = std::move(content)});
    }
  };
  DSV4_ASSIGN_OR_RETURN(answer.generation,
                        Run(MakeRequest(std::move(ids), ask), ask, [&](std::string_view piece) {
                          std::string certain;
                          const bool stop = filter.Feed(piece, certain);
                          deliver(std::move(certain));
                          return !stop;
                        }));
  if (filter.found().empty()) {
    std::string rest;
    filter.Flush(rest);
    deliver(std::move(rest));
  }
  answer.completion.stop_string = filter.found();
  answer.completion.finish_reason = answer.generation.finish_reason == engine::FinishReason::kLength
                                        ? chat::FinishReason::kLength
                                        : chat::FinishReason::kStop;
  answer.cancelled = answer.generation.finish_reason == engine::FinishReason::kCancelled;
  return answer;
}

int64_t ChatRuntime::NumReasoningTokens(const Answer& answer) const {
  if (!answer.starts_in_reasoning) return 0;
  const auto& tokens = answer.generation.tokens;
  const auto end = std::find_if(tokens.begin(), tokens.end(),
                                [&](const auto& token) { return token.id == special_->think_end; });
  return (end - tokens.begin()) + (end != tokens.end() ? 1 : 0);
}

}  // namespace dsv4::apps
