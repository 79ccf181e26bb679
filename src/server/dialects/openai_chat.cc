// Reader and writers of chat completions, streamed and whole.
#include "server/dialects/openai_chat.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "base/json.h"
#include "server/api/api_error.h"
#include "server/api/content_rule_fields.h"
#include "server/api/sse_text.h"
#include "server/dialects/known_fields.h"
#include "server/dialects/openai_json.h"
#include "server/observe/random_id.h"

namespace dsv4::server {
namespace {

void ReadLogprobs(Fields& fields, SamplingCall& call) {
  bool wanted = false;
  int top = 0;
  fields.Read("logprobs", &wanted);
  if (fields.Read("top_logprobs", &top)) {
    if (top < 0 || top > 20) fields.Fail("top_logprobs", fmt::format("got {}, wanted 0..20", top));
    if (!wanted && top > 0) fields.Fail("top_logprobs", "needs logprobs to be true");
  }
  if (wanted) call.num_logprobs = top;
}

// Both kinds of writer: what they have in common.
class ChatWriter : public AnswerWriter {
 public:
  ChatWriter(const ServedModel& model, const OpenAiChatRequest& request, CallMemory& memory)
      : model_(model),
        memory_(memory),
        num_choices_(static_cast<size_t>(request.call.sampling.num_choices)),
        wants_logprobs_(request.call.sampling.num_logprobs >= 0),
        wants_token_ids_(request.call.sampling.wants_token_ids),
        wants_transfer_(request.call.sampling.wants_transfer),
        shows_reasoning_(request.call.thinking.shows_reasoning),
        call_ids_(num_choices_),
        token_ids_(num_choices_) {}

  void TakePrompt(std::span<const int32_t> prompt) override {
    if (wants_token_ids_) prompt_ids_.assign(prompt.begin(), prompt.end());
  }

  std::string ErrorBody(const Status& status) override { return OpenAiError(status); }

 protected:
  Json Document(const char* object) const {
    return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_.id}};
  }
  const std::string& CallId(size_t choice, int index) {
    std::vector<std::string>& ids = call_ids_[choice];
    while (ids.size() <= static_cast<size_t>(index)) ids.push_back(NumberedCallId("call_", ids.size()));
    return ids[static_cast<size_t>(index)];
  }
  void Remember(size_t choice, const std::vector<chat::ParsedCall>& calls,
                const session::AnswerReader& reader) {
    memory_.Remember(call_ids_[choice], calls, reader.sampled_calls());
  }
  Json LogprobsJson(const session::AnswerTokens& tokens) const {
    Json json = {{"content", OpenAiLogprobs(model_.tokenizer, tokens.content)}, {"refusal", nullptr}};
    if (!tokens.reasoning.empty() && shows_reasoning_)
      json["reasoning_content"] = OpenAiLogprobs(model_.tokenizer, tokens.reasoning);
    return json;
  }

  const ServedModel& model_;
  CallMemory& memory_;
  size_t num_choices_;
  bool wants_logprobs_;
  bool wants_token_ids_;
  bool wants_transfer_;
  bool shows_reasoning_;
  std::string id_ = RandomId("chatcmpl-");
  int64_t created_ = std::time(nullptr);
  std::vector<std::vector<std::string>> call_ids_;  // Per choice, by the call's index.
  std::vector<std::vector<int32_t>> token_ids_;     // Per choice: those that have not been written.
  std::vector<int32_t> prompt_ids_;                 // Ids, where they are wanted.
};

class StreamedChat final : public ChatWriter {
 public:
  StreamedChat(const ServedModel& model, const OpenAiChatRequest& request, CallMemory& memory)
      : ChatWriter(model, request, memory),
        include_usage_(request.include_usage),
        collectors_(num_choices_),
        opening_("data: " + JsonText(Document("chat.completion.chunk"))) {
    opening_.pop_back();  // The brace that closes it.
  }

  bool streamed() const override { return true; }

  void Begin(const Usage&, std::string& out) override {
    for (size_t choice = 0; choice < num_choices_; ++choice) {
      Emit(choice, R"({"role":"assistant","content":""})", "null", "null", out);
    }
  }

  void Write(size_t choice, const chat::Delta& delta, session::AnswerTokens tokens,
             const session::AnswerReader& reader, std::string& out) override {
    collectors_[choice].Add(delta);
    token_ids_[choice].insert(token_ids_[choice].end(), tokens.ids.begin(), tokens.ids.end());
    const std::string logprobs = wants_logprobs_ && !(tokens.content.empty() && tokens.reasoning.empty())
                                     ? JsonText(LogprobsJson(tokens))
                                     : "null";
    switch (delta.kind) {
      case chat::Delta::Kind::kReasoning:
        if (!shows_reasoning_) return;
        return Emit(choice, ReasoningFields(delta.text), logprobs, "null", out);
      case chat::Delta::Kind::kContent:
        return Emit(choice, TextField("content", delta.text), logprobs, "null", out);
      case chat::Delta::Kind::kToolCallBegin:
        return EmitCall(choice,
                        {{"index", delta.index},
                         {"id", CallId(choice, delta.index)},
                         {"type", "function"},
                         {"function", {{"name", delta.text}, {"arguments", ""}}}},
                        out);
      case chat::Delta::Kind::kArguments:
        return EmitCall(choice, {{"index", delta.index}, {"function", {{"arguments", delta.text}}}}, out);
      case chat::Delta::Kind::kToolCallEnd:
        return;
      case chat::Delta::Kind::kDone: {
        const chat::CollectedCompletion collected = collectors_[choice].Take();
        if (!delta.has_cut_call) Remember(choice, collected.message.tool_calls, reader);
        return Emit(choice, "{}", logprobs, JsonText(chat::FinishReasonName(delta.finish_reason)), out);
      }
    }
  }

  void End(const Usage& usage, std::string& out) override {
    if (include_usage_) {
      Json chunk = Document("chat.completion.chunk");
      chunk["choices"] = Json::array();
      chunk["usage"] = OpenAiUsage(usage);
      out += SseData(chunk);
    }
    if (wants_transfer_) {
      Json chunk = Document("chat.completion.chunk");
      chunk["choices"] = Json::array();
      chunk["kv_transfer_params"] = TransferParams(usage);
      out += SseData(chunk);
    }
    out += "data: [DONE]\n\n";
  }

  void Fail(const Status& status, std::string& out) override {
    out += "data: " + OpenAiError(status) + "\n\n";
  }

 private:
  static std::string TextField(std::string_view name, const std::string& text) {
    return fmt::format(R"({{"{}":{}}})", name, JsonText(text));
  }
  std::string ReasoningFields(const std::string& text) const {
    if (!model_.both_reasoning_fields) return TextField("reasoning_content", text);
    return fmt::format(R"({{"reasoning_content":{0},"reasoning":{0}}})", JsonText(text));
  }
  void EmitCall(size_t choice, const Json& call, std::string& out) {
    Emit(choice, JsonText({{"tool_calls", Json::array({call})}}), "null", "null", out);
  }
  // One chunk; what varies, as JSON. Every token comes through here, so no document is built.
  void Emit(size_t choice, std::string_view delta, std::string_view logprobs, std::string_view finish_reason,
            std::string& out) {
    fmt::format_to(std::back_inserter(out),
                   "{},\"choices\":[{{\"index\":{},\"delta\":{},\"logprobs\":{},\"finish_reason\":{}",
                   opening_, choice, delta, logprobs, finish_reason);
    if (wants_token_ids_) {
      fmt::format_to(std::back_inserter(out), ",\"token_ids\":[{}]",
                     fmt::join(std::exchange(token_ids_[choice], {}), ","));
    }
    out += "}]";
    if (!prompt_ids_.empty()) {
      fmt::format_to(std::back_inserter(out), ",\"prompt_token_ids\":[{}]",
                     fmt::join(std::exchange(prompt_ids_, {}), ","));
    }
    out += "}\n\n";
  }

  bool include_usage_;
  std::vector<chat::CompletionCollector> collectors_;
  std::string opening_;  // Opening of every chunk.
};

class WholeChat final : public ChatWriter {
 public:
  WholeChat(const ServedModel& model, const OpenAiChatRequest& request, CallMemory& memory)
      : ChatWriter(model, request, memory),
        collectors_(num_choices_),
        tokens_(num_choices_),
        choices_(num_choices_),
        wants_prompt_logprobs_(request.call.sampling.num_prompt_logprobs >= 0) {}

  bool streamed() const override { return false; }
  void Begin(const Usage&, std::string&) override {}

  void Write(size_t choice, const chat::Delta& delta, session::AnswerTokens tokens,
             const session::AnswerReader& reader, std::string&) override {
    collectors_[choice].Add(delta);
    session::AnswerTokens& all = tokens_[choice];
    all.content.insert(all.content.end(), std::make_move_iterator(tokens.content.begin()),
                       std::make_move_iterator(tokens.content.end()));
    all.reasoning.insert(all.reasoning.end(), std::make_move_iterator(tokens.reasoning.begin()),
                         std::make_move_iterator(tokens.reasoning.end()));
    all.ids.insert(all.ids.end(), tokens.ids.begin(), tokens.ids.end());
    if (delta.kind != chat::Delta::Kind::kDone) return;
    if (wants_prompt_logprobs_ && choice == 0)
      prompt_logprobs_ = PromptLogprobs(model_.tokenizer, reader.prompt_scores());
    const chat::CollectedCompletion collected = collectors_[choice].Take();
    Json message = {{"role", "assistant"}, {"content", collected.message.content}, {"refusal", nullptr}};
    if (const std::string& reasoning = collected.message.reasoning_content;
        shows_reasoning_ && !reasoning.empty()) {
      message["reasoning_content"] = reasoning;
      if (model_.both_reasoning_fields) message["reasoning"] = reasoning;
    }
    const std::vector<chat::ParsedCall>& calls = collected.begun_calls;
    if (!calls.empty()) {
      if (collected.message.content.empty()) message["content"] = nullptr;
      message["tool_calls"] = Json::array();
      for (size_t i = 0; i < calls.size(); ++i) {
        message["tool_calls"].push_back(
            {{"id", CallId(choice, static_cast<int>(i))},
             {"type", "function"},
             {"function", {{"name", calls[i].name}, {"arguments", calls[i].arguments}}}});
      }
      if (!delta.has_cut_call) Remember(choice, calls, reader);
    }
    choices_[choice] = {{"index", choice},
                        {"message", std::move(message)},
                        {"logprobs", wants_logprobs_ ? LogprobsJson(all) : Json(nullptr)},
                        {"finish_reason", chat::FinishReasonName(collected.finish_reason)}};
    if (wants_token_ids_) choices_[choice]["token_ids"] = all.ids;
  }

  void End(const Usage& usage, std::string& out) override {
    Json document = Document("chat.completion");
    document["choices"] = choices_;
    document["usage"] = OpenAiUsage(usage);
    if (wants_transfer_) document["kv_transfer_params"] = TransferParams(usage);
    if (wants_prompt_logprobs_) document["prompt_logprobs"] = prompt_logprobs_;
    if (wants_token_ids_) document["prompt_token_ids"] = prompt_ids_;
    out += JsonText(document);
  }

  void Fail(const Status& status, std::string& out) override { out += OpenAiError(status); }

 private:
  std::vector<chat::CompletionCollector> collectors_;
  std::vector<session::AnswerTokens> tokens_;
  std::vector<Json> choices_;
  bool wants_prompt_logprobs_;
  Json prompt_logprobs_;
};

// Whether a message says something beside its content. OpenAI's protocol lets an answer of calls, or of a
// refusal, go without. An answer that was cut while it was thinking has no content to send back. The other
// members are this format's own.
bool SaysMoreThanContent(const chat::JsonValue& message) {
  const chat::JsonValue* const role = message.Find("role");
  const auto has = [&](std::string_view name) {
    const chat::JsonValue* const value = message.Find(name);
    return value != nullptr && !value->is_null();
  };
  if (has("content_blocks") || has("tools")) return true;
  if (role == nullptr || !role->is_string()) return false;
  if (role->text() == "tool" || role->text() == "function") return true;  // It ran, and returned nothing.
  if (role->text() != "assistant") return false;
  constexpr std::array kOfAnswers = {"tool_calls", "function_call",     "refusal",
                                     "audio",      "reasoning_content", "reasoning",
                                     "thinking",   "reasoning_details", "thinking_blocks"};
  return std::ranges::any_of(kOfAnswers, has);
}

// A message without content is a client's mistake that an answer would hide.
Status CheckContents(const chat::JsonValue& messages) {
  for (size_t i = 0; i < messages.items().size(); ++i) {
    const chat::JsonValue& message = messages.items()[i];
    if (!message.is_object()) continue;  // ParseMessages names it.
    const chat::JsonValue* const content = message.Find("content");
    if ((content != nullptr && !content->is_null()) || SaysMoreThanContent(message)) continue;
    return InvalidArgument(fmt::format(
        "messages[{}].content: {}, wanted a string or a list of parts; only a tool's result and an "
        "assistant's message with tool_calls, reasoning_content or a refusal go without",
        i, content == nullptr ? "missing" : "got null"));
  }
  return {};
}

}  // namespace

Result<OpenAiChatRequest> ReadOpenAiChat(const ServedModel& model, const chat::JsonValue& body) {
  Fields fields(body);
  OpenAiChatRequest request;
  ChatCall& call = request.call;
  SamplingCall& sampling = call.sampling;
  const chat::JsonValue* messages = nullptr;
  if (!fields.ReadList("messages", &messages)) fields.Fail("messages", "missing, wanted a list of messages");
  DSV4_TRY(ReadStreaming(fields, &request.stream, &request.include_usage));
  ReadStop(fields, "stop", sampling);
  int64_t max_tokens = 0;
  if (fields.Read("max_tokens", &max_tokens)) sampling.max_tokens = max_tokens;
  if (fields.Read("max_completion_tokens", &max_tokens)) {
    if (max_tokens <= 0)
      fields.Fail("max_completion_tokens", fmt::format("got {}, wanted 1 or more", max_tokens));
    sampling.max_tokens = max_tokens;
  }
  ReadSampling(fields, sampling);
  ReadTransfer(fields, model, sampling);
  ReadLogprobs(fields, sampling);
  fields.Read("return_token_ids", &sampling.wants_token_ids);
  ReadPromptLogprobs(fields, request.stream, sampling);
  ReadToolChoice(fields, FunctionLayout::kNested, model.profile->namespace_mark, call);
  ExpectThinking(fields);
  fields.Read("continue_final_message", &call.conversation.continue_final_message);
  fields.Read("parallel_tool_calls", &call.parallel_calls);
  const chat::JsonValue* format = nullptr;
  if (fields.ReadObject("response_format", &format) && !ReadFormatRule(fields, *format, sampling.rule))
    call.conversation.response_format = *format;
  fields.Expect({"model", "tools"});
  CheckFields(fields, body, kChat, model, sampling);
  DSV4_TRY(fields.status());
  DSV4_TRY(CheckContents(*messages));
  DSV4_ASSIGN_OR_RETURN(call.conversation.messages,
                        chat::ParseMessages(*messages, "messages", chat::MessageForm::kClients));
  if (const chat::JsonValue* tools = fields.Find("tools")) {
    DSV4_ASSIGN_OR_RETURN(call.conversation.tools, chat::ParseTools(*tools, "tools"));
    for (size_t i = 0; i < call.conversation.tools.size(); ++i) {
      DSV4_ASSIGN_OR_RETURN(ToolRule rule, ReadToolRule(*call.conversation.tools[i].Find("function"),
                                                        fmt::format("tools[{}].function.", i)));
      call.tool_rules.push_back(std::move(rule));
    }
  }
  DSV4_ASSIGN_OR_RETURN(call.thinking, chat::ResolveThinking(*model.profile, body, model.default_thinking));
  FillDefaults(model, call);
  return request;
}

std::unique_ptr<AnswerWriter> MakeOpenAiChatWriter(const ServedModel& model, const OpenAiChatRequest& request,
                                                   CallMemory& memory) {
  if (request.stream) return std::make_unique<StreamedChat>(model, request, memory);
  return std::make_unique<WholeChat>(model, request, memory);
}

}  // namespace dsv4::server
