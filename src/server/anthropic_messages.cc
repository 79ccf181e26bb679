#include "server/anthropic_messages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "server/api_error.h"
#include "server/json_text.h"
#include "server/random_id.h"

namespace dsv4::server {
namespace {

// ---------------------------------------------------------------------------------------------------------------------
// Reading

// A text, or a list of text blocks, joined as the encoder joins the parts of a turn.
Result<std::string> ReadText(const chat::JsonValue& content, const std::string& where) {
  if (content.is_string()) return content.text();
  if (!content.is_array()) {
    return Error(InvalidArgument(
        fmt::format("{}: got {}, wanted a text or a list of blocks", where, content.kind_name())));
  }
  std::vector<std::string> texts;
  for (size_t i = 0; i < content.items().size(); ++i) {
    Fields block(content.items()[i], fmt::format("{}[{}].", where, i));
    std::string type;
    std::string text;
    block.Read("type", &type);
    if (type != "text") block.Fail("type", fmt::format("got '{}', wanted text", type));
    if (!block.Read("text", &text)) block.Fail("text", "missing");
    DSV4_TRY(block.status());
    texts.push_back(std::move(text));
  }
  return fmt::format("{}", fmt::join(texts, "\n\n"));
}

// What a tool has given back: parts of other kinds than text are named to the model, as the encoder does.
Result<chat::Content> ReadToolResult(const chat::JsonValue* content, const std::string& where) {
  if (content == nullptr) return chat::Content("");
  if (content->is_string()) return chat::Content(content->text());
  if (!content->is_array()) {
    return Error(InvalidArgument(
        fmt::format("{}: got {}, wanted a text or a list of blocks", where, content->kind_name())));
  }
  chat::Content result;
  result.kind = chat::Content::Kind::kParts;
  for (size_t i = 0; i < content->items().size(); ++i) {
    Fields block(content->items()[i], fmt::format("{}[{}].", where, i));
    chat::ContentPart part;
    if (!block.Read("type", &part.type)) block.Fail("type", "missing");
    block.Read("text", &part.text);
    DSV4_TRY(block.status());
    result.parts.push_back(std::move(part));
  }
  return result;
}

Status ReadUserBlock(const chat::JsonValue& json, const std::string& where,
                     std::vector<chat::Message>& messages) {
  Fields block(json, where + ".");
  std::string type;
  block.Read("type", &type);
  DSV4_RETURN_IF_ERROR(block.status());
  if (type == "text") {
    std::string text;
    if (!block.Read("text", &text)) block.Fail("text", "missing");
    DSV4_RETURN_IF_ERROR(block.status());
    messages.push_back({.role = chat::Role::kUser, .content = text, .label = where});
    return {};
  }
  if (type == "tool_result") {
    chat::Message message = {.role = chat::Role::kTool, .label = where};
    if (!block.Read("tool_use_id", &message.tool_call_id)) block.Fail("tool_use_id", "missing");
    DSV4_RETURN_IF_ERROR(block.status());
    DSV4_ASSIGN_OR_RETURN_STATUS(message.content, ReadToolResult(block.Find("content"), where + ".content"));
    messages.push_back(std::move(message));
    return {};
  }
  block.Fail("type", fmt::format("got '{}', wanted text or tool_result", type));
  return block.status();
}

Status ReadAssistantBlock(const chat::JsonValue& json, const std::string& where, chat::Message& message) {
  Fields block(json, where + ".");
  std::string type;
  std::string text;
  block.Read("type", &type);
  if (type == "text") {
    if (!block.Read("text", &text)) block.Fail("text", "missing");
    message.content.text += text;
  } else if (type == "thinking") {
    if (!block.Read("thinking", &text)) block.Fail("thinking", "missing");
    message.reasoning_content += text;
  } else if (type == "tool_use") {
    chat::ToolCall call;
    if (!block.Read("id", &call.id)) block.Fail("id", "missing");
    if (!block.Read("name", &call.name)) block.Fail("name", "missing");
    const chat::JsonValue* input = nullptr;
    if (!block.ReadObject("input", &input)) block.Fail("input", "missing, wanted an object");
    if (input != nullptr) call.arguments = chat::WriteJson(*input);
    message.tool_calls.push_back(std::move(call));
  } else if (type != "redacted_thinking") {  // Another model's, which this one cannot read.
    block.Fail("type", fmt::format("got '{}', wanted text, thinking or tool_use", type));
  }
  return block.status();
}

Result<std::vector<chat::Message>> ReadMessages(const chat::JsonValue& list) {
  std::vector<chat::Message> messages;
  for (size_t i = 0; i < list.items().size(); ++i) {
    const std::string where = fmt::format("messages[{}]", i);
    Fields fields(list.items()[i], where + ".");
    std::string role;
    fields.Read("role", &role);
    const chat::JsonValue* content = fields.Find("content");
    if (role != "user" && role != "assistant")
      fields.Fail("role", fmt::format("got '{}', wanted user or assistant", role));
    if (content == nullptr) fields.Fail("content", "missing");
    DSV4_TRY(fields.status());
    const bool is_user = role == "user";
    if (content->is_string()) {
      messages.push_back({.role = is_user ? chat::Role::kUser : chat::Role::kAssistant,
                          .content = content->text(),
                          .label = where});
      continue;
    }
    if (!content->is_array()) {
      return Error(InvalidArgument(
          fmt::format("{}.content: got {}, wanted a text or a list of blocks", where, content->kind_name())));
    }
    chat::Message answer = {.role = chat::Role::kAssistant, .content = "", .label = where};
    for (size_t j = 0; j < content->items().size(); ++j) {
      const std::string block = fmt::format("{}.content[{}]", where, j);
      if (is_user)
        DSV4_TRY(ReadUserBlock(content->items()[j], block, messages));
      else
        DSV4_TRY(ReadAssistantBlock(content->items()[j], block, answer));
    }
    if (!is_user) messages.push_back(std::move(answer));
  }
  return messages;
}

Status ReadTools(const chat::JsonValue& list, ChatCall& call) {
  for (size_t i = 0; i < list.items().size(); ++i) {
    Fields fields(list.items()[i], fmt::format("tools[{}].", i));
    std::string type = "custom";
    std::string name;
    std::string description;
    fields.Read("type", &type);
    if (type != "custom")
      fields.Fail("type", fmt::format("got '{}': tools that a server runs are not offered here", type));
    if (!fields.Read("name", &name)) fields.Fail("name", "missing");
    const chat::JsonValue* schema = nullptr;
    if (!fields.ReadObject("input_schema", &schema)) fields.Fail("input_schema", "missing, wanted an object");
    const bool has_description = fields.Read("description", &description);
    ToolRule rule = {.schema_label = fmt::format("tools[{}].input_schema", i)};
    fields.Read("strict", &rule.strict);
    DSV4_RETURN_IF_ERROR(fields.status());
    std::vector<chat::JsonValue::Member> function = {{"name", chat::JsonValue::String(name)}};
    if (has_description) function.emplace_back("description", chat::JsonValue::String(description));
    function.emplace_back("parameters", *schema);
    call.conversation.tools.push_back(
        chat::JsonValue::Object({{"type", chat::JsonValue::String("function")},
                                 {"function", chat::JsonValue::Object(std::move(function))}}));
    call.tool_rules.push_back(std::move(rule));
  }
  return {};
}

void ReadToolChoice(Fields& fields, ChatCall& call) {
  const chat::JsonValue* choice = nullptr;
  if (!fields.ReadObject("tool_choice", &choice)) return;
  Fields inner(*choice, "tool_choice.");
  std::string type;
  inner.Read("type", &type);
  bool sequential = false;
  inner.Read("disable_parallel_tool_use", &sequential);
  call.parallel_calls = !sequential;
  if (type == "none")
    call.tool_choice = ToolChoice::kNone;
  else if (type == "any" || type == "tool")
    call.tool_choice = ToolChoice::kRequired;
  else if (type != "auto")
    inner.Fail("type", fmt::format("got '{}', wanted auto, any, tool or none", type));
  std::string name;
  if (type == "tool") {
    if (!inner.Read("name", &name)) inner.Fail("name", "missing");
    call.tool_names = {name};
  }
  fields.Adopt(inner.status());
}

// output_config.format, and output_format as it was called first: {"type": "json_schema", "schema"}.
void ReadFormat(Fields& fields, ChatCall& call) {
  const auto read = [&](Fields& holder, const char* name, const std::string& path) {
    const chat::JsonValue* format = nullptr;
    if (!holder.ReadObject(name, &format)) return;
    Fields members(*format, path + ".");
    std::string type;
    const chat::JsonValue* schema = nullptr;
    members.Read("type", &type);
    if (type != "json_schema") members.Fail("type", fmt::format("got '{}', wanted json_schema", type));
    if (!members.ReadObject("schema", &schema)) members.Fail("schema", "missing, wanted an object");
    fields.Adopt(members.status());
    if (schema == nullptr) return;
    call.conversation.response_format = chat::ResponseFormatOf(*schema);
    call.schema_label = path + ".schema";
  };
  read(fields, "output_format", "output_format");
  const chat::JsonValue* config = nullptr;
  if (!fields.ReadObject("output_config", &config)) return;
  Fields inner(*config, "output_config.");
  read(inner, "format", "output_config.format");
  fields.Adopt(inner.status());
}

// ---------------------------------------------------------------------------------------------------------------------
// Writing

class AnthropicWriter final : public AnswerWriter {
 public:
  AnthropicWriter(const ServedModel& model, const AnthropicRequest& request, CallMemory& memory)
      : model_(model), memory_(memory), streamed_(request.stream) {}

  bool streamed() const override { return streamed_; }
  std::string_view KeepAlive() const override { return "event: ping\ndata: {\"type\": \"ping\"}\n\n"; }

  void Begin(const Usage& usage, std::string& out) override {
    Json message = Message(usage, nullptr, nullptr);
    message["content"] = Json::array();
    Emit({{"type", "message_start"}, {"message", std::move(message)}}, out);
  }

  void Write(size_t, const chat::Delta& delta, AnswerTokens, const AnswerReader& reader,
             std::string& out) override {
    switch (delta.kind) {
      case chat::Delta::Kind::kReasoning:
        Open("thinking", {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}, out);
        content_.back()["thinking"].get_ref<std::string&>() += delta.text;
        return EmitDelta({{"type", "thinking_delta"}, {"thinking", delta.text}}, out);
      case chat::Delta::Kind::kContent:
        Open("text", {{"type", "text"}, {"text", ""}}, out);
        content_.back()["text"].get_ref<std::string&>() += delta.text;
        return EmitDelta({{"type", "text_delta"}, {"text", delta.text}}, out);
      case chat::Delta::Kind::kToolCallBegin:
        Close(out);
        calls_.push_back({.name = delta.text});
        call_ids_.push_back(RandomId("toolu_"));
        return Open(
            "tool_use",
            {{"type", "tool_use"}, {"id", call_ids_.back()}, {"name", delta.text}, {"input", Json::object()}},
            out);
      case chat::Delta::Kind::kArguments:
        calls_.back().arguments += delta.text;
        return EmitDelta({{"type", "input_json_delta"}, {"partial_json", delta.text}}, out);
      case chat::Delta::Kind::kToolCallEnd: {
        Json input = Json::parse(calls_.back().arguments, nullptr, false);
        content_.back()["input"] = input.is_discarded() ? Json::object() : std::move(input);
        return Close(out);
      }
      case chat::Delta::Kind::kDone:
        return Finish(delta, reader, out);
    }
  }

  void End(const Usage& usage, std::string& out) override {
    if (!streamed_) {
      Json message = Message(usage, stop_reason_, stop_sequence_);
      message["content"] = std::move(content_);
      out += JsonText(message);
      return;
    }
    Emit({{"type", "message_delta"},
          {"delta", {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}}},
          {"usage", UsageJson(usage)}},
         out);
    Emit({{"type", "message_stop"}}, out);
  }

  std::string ErrorBody(const Status& status) override { return AnthropicError(status); }
  void Fail(const Status& status, std::string& out) override {
    out += "event: error\ndata: " + AnthropicError(status) + "\n\n";
  }

 private:
  static Json UsageJson(const Usage& usage) {
    return {{"input_tokens", usage.num_prompt_tokens - usage.num_cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", usage.num_cached_tokens},
            {"output_tokens", usage.num_output_tokens}};
  }
  Json Message(const Usage& usage, Json stop_reason, Json stop_sequence) const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", model_.id},
            {"content", nullptr},
            {"stop_reason", std::move(stop_reason)},
            {"stop_sequence", std::move(stop_sequence)},
            {"usage", UsageJson(usage)}};
  }

  void Emit(Json event, std::string& out) const {
    if (streamed_) out += SseEvent(event["type"].get_ref<const std::string&>(), event);
  }
  void EmitDelta(Json delta, std::string& out) const {
    Emit({{"type", "content_block_delta"}, {"index", content_.size() - 1}, {"delta", std::move(delta)}}, out);
  }
  // Begins a block unless one of this type is open.
  void Open(const std::string& type, Json block, std::string& out) {
    if (open_ == type) return;
    Close(out);
    open_ = type;
    content_.push_back(std::move(block));
    Emit(
        {{"type", "content_block_start"}, {"index", content_.size() - 1}, {"content_block", content_.back()}},
        out);
  }
  void Close(std::string& out) {
    if (open_.empty()) return;
    if (open_ == "thinking") {  // Clients send it back; it says nothing to us.
      content_.back()["signature"] = id_;
      EmitDelta({{"type", "signature_delta"}, {"signature", id_}}, out);
    }
    open_.clear();
    Emit({{"type", "content_block_stop"}, {"index", content_.size() - 1}}, out);
  }
  void Finish(const chat::Delta& done, const AnswerReader& reader, std::string& out) {
    // A call that was cut is left out of a whole answer; of a streamed one it has been sent in part.
    const bool cut = open_ == "tool_use";
    Close(out);
    if (cut && !streamed_) content_.erase(content_.size() - 1);
    const bool only_thinking =
        content_.empty() || (content_.size() == 1 && content_[0]["type"] == "thinking");
    if (only_thinking) {
      Open("text", {{"type", "text"}, {"text", ""}}, out);
      Close(out);
    }
    if (!cut) memory_.Remember(call_ids_, calls_, reader.sampled_calls());
    if (done.finish_reason == chat::FinishReason::kLength || (cut && streamed_)) {
      stop_reason_ = "max_tokens";
    } else if (done.finish_reason == chat::FinishReason::kToolCalls) {
      stop_reason_ = "tool_use";
    } else if (!done.text.empty()) {
      stop_reason_ = "stop_sequence";
      stop_sequence_ = done.text;
    } else {
      stop_reason_ = "end_turn";
    }
  }

  const ServedModel& model_;
  CallMemory& memory_;
  bool streamed_;
  std::string id_ = RandomId("msg_");
  Json content_ = Json::array();
  std::string open_;  // The type of the last block while it grows.
  std::vector<std::string> call_ids_;
  std::vector<chat::ParsedCall> calls_;
  Json stop_reason_;
  Json stop_sequence_;
};

}  // namespace

Result<AnthropicRequest> ReadAnthropic(const ServedModel& model, const chat::JsonValue& body, bool counting) {
  Fields fields(body);
  AnthropicRequest request;
  ChatCall& call = request.call;
  const chat::JsonValue* messages = nullptr;
  if (!fields.ReadList("messages", &messages)) fields.Fail("messages", "missing, wanted a list of messages");
  int64_t max_tokens = 0;
  if (fields.Read("max_tokens", &max_tokens))
    call.sampling.max_tokens = max_tokens;
  else if (!counting)
    fields.Fail("max_tokens", "missing, wanted an integer");
  fields.Read("stream", &request.stream);
  fields.ReadStrings("stop_sequences", &call.sampling.stop);
  ReadSampling(fields, call.sampling);
  if (call.sampling.num_choices != 1) fields.Fail("n", "this dialect has one answer");
  ReadToolChoice(fields, call);
  ReadFormat(fields, call);
  const chat::JsonValue* tools = nullptr;
  fields.ReadList("tools", &tools);
  const chat::JsonValue* system = fields.Find("system");
  fields.Expect({"model", "thinking", "metadata"});
  DSV4_TRY(fields.status());
  if (system != nullptr) {
    DSV4_ASSIGN_OR_RETURN(std::string text, ReadText(*system, "system"));
    call.conversation.messages.push_back(
        {.role = chat::Role::kSystem, .content = std::move(text), .label = "system"});
  }
  DSV4_ASSIGN_OR_RETURN(std::vector<chat::Message> turns, ReadMessages(*messages));
  if (turns.empty()) return Error(InvalidArgument("messages: empty, wanted at least one message"));
  // An assistant message at the end is the beginning of the answer.
  call.conversation.continue_final_message = turns.back().role == chat::Role::kAssistant;
  for (chat::Message& turn : turns) call.conversation.messages.push_back(std::move(turn));
  if (tools != nullptr) DSV4_TRY(ReadTools(*tools, call));
  DSV4_ASSIGN_OR_RETURN(call.thinking, chat::ResolveThinking(*model.profile, body, model.default_thinking));
  fields.LogUnknown("messages");
  return request;
}

std::unique_ptr<AnswerWriter> MakeAnthropicWriter(const ServedModel& model, const AnthropicRequest& request,
                                                  CallMemory& memory) {
  return std::make_unique<AnthropicWriter>(model, request, memory);
}

}  // namespace dsv4::server
