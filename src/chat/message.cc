// Reader of API messages: roles, parts, tool calls, reasoning, and errors that name the message.
#include "chat/message.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>

#include "base/log.h"

namespace dsv4::chat {
namespace {

constexpr std::array<std::string_view, 6> kRoleNames = {"system",    "developer", "user",
                                                        "assistant", "tool",      "latest_reminder"};

tl::unexpected<Status> WrongType(std::string_view where, const JsonValue& got, std::string_view wanted) {
  return Error(InvalidArgument(fmt::format("{}: got {}, wanted {}", where, got.kind_name(), wanted)));
}

std::string Join(std::string_view where, std::string_view key) { return fmt::format("{}.{}", where, key); }

// Null when the member is missing or null: for most fields both mean "not given".
const JsonValue* Given(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.Find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Result<std::string> OptionalString(const JsonValue& object, std::string_view key, std::string_view where) {
  const JsonValue* value = Given(object, key);
  if (value == nullptr) return std::string();
  if (!value->is_string()) return WrongType(Join(where, key), *value, "a string");
  return value->text();
}

Result<std::string> RequiredString(const JsonValue& object, std::string_view key, std::string_view where) {
  const JsonValue* value = object.Find(key);
  if (value == nullptr)
    return Error(InvalidArgument(fmt::format("{}: missing, wanted a string", Join(where, key))));
  if (!value->is_string()) return WrongType(Join(where, key), *value, "a string");
  return value->text();
}

Result<bool> OptionalBool(const JsonValue& object, std::string_view key, std::string_view where) {
  const JsonValue* value = Given(object, key);
  if (value == nullptr) return false;
  if (!value->is_bool()) return WrongType(Join(where, key), *value, "a boolean");
  return value->boolean();
}

bool IsOneOf(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool IsText(std::string_view type) { return IsOneOf(type, {"text", "input_text", "output_text"}); }

// The text of a part that has no type: a string, or an object of a text, as other servers take them.
std::optional<std::string> BareText(const JsonValue& item) {
  if (item.is_string()) return item.text();
  const JsonValue* const text = Given(item, "text");
  if (text == nullptr || !text->is_string() || Given(item, "type") != nullptr) return std::nullopt;
  return text->text();
}

Result<Content> ParseContent(const JsonValue* json, const std::string& where,
                             MessageForm form = MessageForm::kEncoder) {
  Content content;
  if (json == nullptr) return content;
  if (json->is_null()) {
    content.kind = Content::Kind::kNull;
  } else if (json->is_string()) {
    content = json->text();
  } else if (json->is_array()) {
    content.kind = Content::Kind::kParts;
    for (size_t i = 0; i < json->items().size(); ++i) {
      const JsonValue& item = json->items()[i];
      const std::string part_where = fmt::format("{}[{}]", where, i);
      if (std::optional<std::string> text = BareText(item); text && form == MessageForm::kClients) {
        content.parts.push_back({.type = "text", .text = std::move(*text)});
        continue;
      }
      if (!item.is_object()) return WrongType(part_where, item, "an object");
      ContentPart part;
      DSV4_ASSIGN_OR_RETURN(part.type, RequiredString(item, "type", part_where));
      if (form == MessageForm::kClients && IsText(part.type)) part.type = "text";
      if (part.type == "text") {
        DSV4_ASSIGN_OR_RETURN(part.text, RequiredString(item, "text", part_where));
      }
      content.parts.push_back(std::move(part));
    }
  } else {
    return WrongType(where, *json, "a string, null or a list of parts");
  }
  return content;
}

Result<std::vector<UserBlock>> ParseBlocks(const JsonValue& json, const std::string& where) {
  if (!json.is_array()) return WrongType(where, json, "a list of blocks");
  std::vector<UserBlock> blocks;
  for (size_t i = 0; i < json.items().size(); ++i) {
    const JsonValue& item = json.items()[i];
    const std::string block_where = fmt::format("{}[{}]", where, i);
    if (!item.is_object()) return WrongType(block_where, item, "an object");
    UserBlock block;
    DSV4_ASSIGN_OR_RETURN(block.type, RequiredString(item, "type", block_where));
    if (block.type == "text") {
      DSV4_ASSIGN_OR_RETURN(std::string text, RequiredString(item, "text", block_where));
      block.content = std::move(text);
    } else if (block.type == "tool_result") {
      DSV4_ASSIGN_OR_RETURN(block.content, ParseContent(item.Find("content"), Join(block_where, "content")));
      DSV4_ASSIGN_OR_RETURN(block.tool_call_id, OptionalString(item, "tool_use_id", block_where));
    }
    blocks.push_back(std::move(block));
  }
  return blocks;
}

// The first of these members that is a text with something in it; or empty.
std::string FirstText(const JsonValue& object, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    const JsonValue* value = Given(object, key);
    if (value != nullptr && value->is_string() && !value->text().empty()) return value->text();
  }
  return {};
}

// A call without an object of its function: Anthropic's tool_use, the AI SDK's tool-call, LangChain's tool_call,
// the function_call of Responses.
Result<ToolCall> ParseCallPart(const JsonValue& part, const std::string& where) {
  ToolCall call = {.id = FirstText(part, {"id", "call_id", "toolCallId"}),
                   .name = FirstText(part, {"name", "toolName"})};
  if (call.name.empty())
    return Error(InvalidArgument(fmt::format("{}.name: missing, wanted a string", where)));
  const JsonValue* arguments = nullptr;
  for (const std::string_view key : {"input", "args", "arguments"}) {
    if (arguments == nullptr) arguments = Given(part, key);
  }
  call.arguments = CallArguments(arguments);
  return call;
}

Result<ToolCall> ParseToolCall(const JsonValue& json, const std::string& where, MessageForm form) {
  if (!json.is_object()) return WrongType(where, json, "an object");
  const std::string function_where = Join(where, "function");
  const JsonValue* function = form == MessageForm::kClients ? Given(json, "function") : json.Find("function");
  if (form == MessageForm::kClients && function == nullptr) {
    if (const JsonValue* custom = Given(json, "custom"); custom != nullptr && custom->is_object()) {
      const JsonValue* const input = Given(*custom, "input");
      DSV4_ASSIGN_OR_RETURN(std::string name, RequiredString(*custom, "name", Join(where, "custom")));
      return ToolCall{.id = FirstText(json, {"id"}),
                      .name = std::move(name),
                      .arguments = input == nullptr ? CallArguments(nullptr)
                                                    : WriteJson(JsonValue::Object({{"input", *input}}))};
    }
    if (!FirstText(json, {"name", "toolName"}).empty()) return ParseCallPart(json, where);
  }
  if (function == nullptr) return Error(InvalidArgument(function_where + ": missing, wanted an object"));
  if (!function->is_object()) return WrongType(function_where, *function, "an object");
  ToolCall call;
  DSV4_ASSIGN_OR_RETURN(call.id, OptionalString(json, "id", where));
  if (call.id.empty()) {
    DSV4_ASSIGN_OR_RETURN(call.id, OptionalString(*function, "id", function_where));
  }
  DSV4_ASSIGN_OR_RETURN(call.name, RequiredString(*function, "name", function_where));
  // Some clients send the object itself where the protocol has its text.
  const JsonValue* arguments = function->Find("arguments");
  if (form == MessageForm::kClients) {
    call.arguments = CallArguments(arguments);
  } else if (arguments != nullptr && arguments->is_object()) {
    call.arguments = WriteJson(*arguments);
  } else {
    DSV4_ASSIGN_OR_RETURN(call.arguments, RequiredString(*function, "arguments", function_where));
  }
  return call;
}

void AppendPart(const std::string& text, std::string& joined) {
  if (!joined.empty() && !text.empty()) joined += "\n\n";
  joined += text;
}

// The text of a list of reasoning parts, whatever their form: OpenRouter's reasoning_details, LiteLLM's
// thinking_blocks.
std::string ReasoningOf(const JsonValue* parts) {
  std::string joined;
  if (parts == nullptr) return joined;
  for (const JsonValue& part : parts->items())
    AppendPart(FirstText(part, {"thinking", "text", "summary", "reasoning"}), joined);
  return joined;
}

// An assistant's content in parts, as all servers write them.
Status ParseAnswerParts(const JsonValue& list, const std::string& where, bool has_calls, Message& message) {
  message.content.kind = Content::Kind::kParts;
  for (size_t i = 0; i < list.items().size(); ++i) {
    const JsonValue& item = list.items()[i];
    const std::string part_where = fmt::format("{}[{}]", where, i);
    if (std::optional<std::string> text = BareText(item)) {
      message.content.parts.push_back({.type = "text", .text = std::move(*text)});
      continue;
    }
    if (item.is_null()) continue;
    if (!item.is_object()) return WrongType(part_where, item, "an object").value();
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::string type, RequiredString(item, "type", part_where));
    if (IsText(type) || type == "refusal") {
      const char* const key = type == "refusal" ? "refusal" : "text";
      if (Given(item, key) == nullptr) continue;
      DSV4_ASSIGN_OR_RETURN_STATUS(std::string text, RequiredString(item, key, part_where));
      message.content.parts.push_back({.type = "text", .text = std::move(text)});
    } else if (IsOneOf(type, {"thinking", "reasoning", "reasoning_content", "reasoning_text"})) {
      const JsonValue* summary = Given(item, "summary");
      AppendPart(FirstText(item, {"thinking", "reasoning", "reasoning_content", "text"}),
                 message.reasoning_content);
      if (summary != nullptr && summary->is_array())
        AppendPart(ReasoningOf(summary), message.reasoning_content);
    } else if (IsOneOf(type, {"tool_use", "tool_call", "tool-call", "function_call"})) {
      if (has_calls) continue;  // The same calls stand in tool_calls.
      DSV4_ASSIGN_OR_RETURN_STATUS(ToolCall call, ParseCallPart(item, part_where));
      message.tool_calls.push_back(std::move(call));
    } else if (IsOneOf(type, {"image", "image_url", "audio", "file", "document", "video"})) {
      message.content.parts.push_back({.type = type});
    } else {
      LogInfo(fmt::format("{}: a part of type '{}' is left out, which this server does not know", part_where,
                          type));
    }
  }
  return {};
}

// Members of clients beside those that the encoder knows.
Status ReadClientMembers(const JsonValue& json, const std::string& where, Message& message) {
  if (message.other_role == "function") {  // The result of a function_call.
    message.role = Role::kTool;
    message.other_role.clear();
  }
  if (message.role != Role::kAssistant) return {};
  if (message.reasoning_content.empty()) {
    message.reasoning_content = FirstText(json, {"thinking"});
    for (const std::string_view key : {"reasoning_details", "thinking_blocks"}) {
      if (message.reasoning_content.empty()) message.reasoning_content = ReasoningOf(Given(json, key));
    }
  }
  const Content& content = message.content;
  const bool is_silent = content.text.empty() && content.parts.empty();
  if (std::string refusal = FirstText(json, {"refusal"}); is_silent && !refusal.empty())
    message.content = std::move(refusal);
  const JsonValue* call = Given(json, "function_call");
  if (call == nullptr || !message.tool_calls.empty()) return {};
  DSV4_ASSIGN_OR_RETURN_STATUS(
      ToolCall made, ParseToolCall(JsonValue::Object({{"function", *call}}), Join(where, "function_call"),
                                   MessageForm::kClients));
  message.tool_calls.push_back(std::move(made));
  return {};
}

Result<Message> ParseMessage(const JsonValue& json, const std::string& where, MessageForm form) {
  if (!json.is_object()) return WrongType(where, json, "an object");
  Message message;
  message.label = where;
  DSV4_ASSIGN_OR_RETURN(const std::string role, RequiredString(json, "role", where));
  size_t index = 0;
  while (index < kRoleNames.size() && kRoleNames[index] != role) ++index;
  message.role = static_cast<Role>(index);
  if (message.role == Role::kOther) message.other_role = role;

  const JsonValue* content = json.Find("content");
  const JsonValue* calls = Given(json, "tool_calls");
  if (form == MessageForm::kClients && role == "assistant" && content != nullptr && content->is_array()) {
    const bool has_calls = calls != nullptr || Given(json, "function_call") != nullptr;
    DSV4_TRY(ParseAnswerParts(*content, Join(where, "content"), has_calls, message));
  } else {
    DSV4_ASSIGN_OR_RETURN(message.content, ParseContent(content, Join(where, "content"), form));
  }
  const std::string reasoning_part = std::move(message.reasoning_content);
  DSV4_ASSIGN_OR_RETURN(message.reasoning_content, OptionalString(json, "reasoning_content", where));
  if (message.reasoning_content.empty()) {
    DSV4_ASSIGN_OR_RETURN(message.reasoning_content, OptionalString(json, "reasoning", where));
  }
  if (message.reasoning_content.empty()) message.reasoning_content = reasoning_part;
  if (const JsonValue* tools = Given(json, "tools")) {
    DSV4_ASSIGN_OR_RETURN(message.tools, ParseTools(*tools, Join(where, "tools")));
  }
  if (calls != nullptr) {
    const std::string calls_where = Join(where, "tool_calls");
    if (!calls->is_array()) return WrongType(calls_where, *calls, "a list");
    for (size_t i = 0; i < calls->items().size(); ++i) {
      DSV4_ASSIGN_OR_RETURN(ToolCall call,
                            ParseToolCall(calls->items()[i], fmt::format("{}[{}]", calls_where, i), form));
      message.tool_calls.push_back(std::move(call));
    }
  }
  DSV4_ASSIGN_OR_RETURN(message.tool_call_id, OptionalString(json, "tool_call_id", where));
  if (const JsonValue* format = Given(json, "response_format")) message.response_format = *format;
  if (Given(json, "task") != nullptr) {
    DSV4_ASSIGN_OR_RETURN(message.task, RequiredString(json, "task", where));
  }
  DSV4_ASSIGN_OR_RETURN(const bool wo_eos, OptionalBool(json, "wo_eos", where));
  DSV4_ASSIGN_OR_RETURN(const bool prefix, OptionalBool(json, "prefix", where));
  message.wo_eos = wo_eos || prefix;
  if (const JsonValue* blocks = Given(json, "content_blocks")) {
    DSV4_ASSIGN_OR_RETURN(message.content_blocks, ParseBlocks(*blocks, Join(where, "content_blocks")));
  }
  if (form == MessageForm::kClients) DSV4_TRY(ReadClientMembers(json, where, message));
  return message;
}

}  // namespace

std::string_view RoleName(Role role) {
  const size_t index = static_cast<size_t>(role);
  return index < kRoleNames.size() ? kRoleNames[index] : "other";
}

std::string CallArguments(const JsonValue* value) {
  const std::string none = "{}";
  if (value == nullptr || value->is_null()) return none;
  if (!value->is_string()) return value->is_array() && value->items().empty() ? none : WriteJson(*value);
  const std::string& text = value->text();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return none;
  // Short texts may be a JSON text of nothing, once more a string perhaps.
  if (constexpr size_t kLongest = 32; text.size() > kLongest) return text;
  const Result<JsonValue> inner = ReadJson(text, "arguments");
  if (!inner || inner->kind() == JsonValue::Kind::kInteger || inner->kind() == JsonValue::Kind::kDouble)
    return text;
  return CallArguments(&*inner) == none ? none : text;
}

Result<std::vector<Message>> ParseMessages(const JsonValue& json, std::string_view what, MessageForm form) {
  if (!json.is_array()) return WrongType(what, json, "a list of messages");
  std::vector<Message> messages;
  for (size_t i = 0; i < json.items().size(); ++i) {
    DSV4_ASSIGN_OR_RETURN(Message message,
                          ParseMessage(json.items()[i], fmt::format("{}[{}]", what, i), form));
    messages.push_back(std::move(message));
  }
  return messages;
}

Result<std::vector<JsonValue>> ParseTools(const JsonValue& json, std::string_view what) {
  if (json.is_null()) return std::vector<JsonValue>();
  if (!json.is_array()) return WrongType(what, json, "a list of tools");
  for (size_t i = 0; i < json.items().size(); ++i) {
    const JsonValue& tool = json.items()[i];
    const JsonValue* function = tool.Find("function");
    if (function == nullptr || !function->is_object()) {
      return Error(InvalidArgument(fmt::format("{}[{}].function: got {}, wanted an object", what, i,
                                               function == nullptr ? "nothing" : function->kind_name())));
    }
  }
  return json.items();
}

void AttachTools(std::vector<Message>& messages, std::vector<JsonValue> tools) {
  if (tools.empty()) return;
  const bool has_carrier =
      !messages.empty() && (messages[0].role == Role::kSystem || messages[0].role == Role::kDeveloper);
  if (!has_carrier) {
    Message system;
    system.role = Role::kSystem;
    system.content = "";
    messages.insert(messages.begin(), std::move(system));
  }
  messages[0].request_tools = std::move(tools);
}

}  // namespace dsv4::chat
