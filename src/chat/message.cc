#include "chat/message.h"

#include <fmt/format.h>

#include <array>

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

Result<Content> ParseContent(const JsonValue* json, const std::string& where) {
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
      if (!item.is_object()) return WrongType(part_where, item, "an object");
      ContentPart part;
      DSV4_ASSIGN_OR_RETURN(part.type, RequiredString(item, "type", part_where));
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

Result<ToolCall> ParseToolCall(const JsonValue& json, const std::string& where) {
  if (!json.is_object()) return WrongType(where, json, "an object");
  const std::string function_where = Join(where, "function");
  const JsonValue* function = json.Find("function");
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
  if (arguments != nullptr && arguments->is_object()) {
    call.arguments = WriteJson(*arguments);
  } else {
    DSV4_ASSIGN_OR_RETURN(call.arguments, RequiredString(*function, "arguments", function_where));
  }
  return call;
}

Result<Message> ParseMessage(const JsonValue& json, const std::string& where) {
  if (!json.is_object()) return WrongType(where, json, "an object");
  Message message;
  message.label = where;
  DSV4_ASSIGN_OR_RETURN(const std::string role, RequiredString(json, "role", where));
  size_t index = 0;
  while (index < kRoleNames.size() && kRoleNames[index] != role) ++index;
  message.role = static_cast<Role>(index);
  if (message.role == Role::kOther) message.other_role = role;

  DSV4_ASSIGN_OR_RETURN(message.content, ParseContent(json.Find("content"), Join(where, "content")));
  DSV4_ASSIGN_OR_RETURN(message.reasoning_content, OptionalString(json, "reasoning_content", where));
  if (message.reasoning_content.empty()) {
    DSV4_ASSIGN_OR_RETURN(message.reasoning_content, OptionalString(json, "reasoning", where));
  }
  if (const JsonValue* tools = Given(json, "tools")) {
    DSV4_ASSIGN_OR_RETURN(message.tools, ParseTools(*tools, Join(where, "tools")));
  }
  if (const JsonValue* calls = Given(json, "tool_calls")) {
    const std::string calls_where = Join(where, "tool_calls");
    if (!calls->is_array()) return WrongType(calls_where, *calls, "a list");
    for (size_t i = 0; i < calls->items().size(); ++i) {
      DSV4_ASSIGN_OR_RETURN(ToolCall call,
                            ParseToolCall(calls->items()[i], fmt::format("{}[{}]", calls_where, i)));
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
  return message;
}

}  // namespace

std::string_view RoleName(Role role) {
  const size_t index = static_cast<size_t>(role);
  return index < kRoleNames.size() ? kRoleNames[index] : "other";
}

Result<std::vector<Message>> ParseMessages(const JsonValue& json, std::string_view what) {
  if (!json.is_array()) return WrongType(what, json, "a list of messages");
  std::vector<Message> messages;
  for (size_t i = 0; i < json.items().size(); ++i) {
    DSV4_ASSIGN_OR_RETURN(Message message, ParseMessage(json.items()[i], fmt::format("{}[{}]", what, i)));
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
  messages[0].tools = std::move(tools);
}

}  // namespace dsv4::chat
