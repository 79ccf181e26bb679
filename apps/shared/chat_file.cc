// Conversation and tool files, read with errors and written.
#include "apps/shared/chat_file.h"

#include <fmt/format.h>

#include "base/json.h"
#include "base/read_file.h"
#include "io/output_file.h"

namespace dsv4::apps {
namespace {

Result<chat::JsonValue> ReadJsonFile(const std::string& path) {
  DSV4_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, FileKind::kAny));
  return chat::ReadJson(text, path);
}

}  // namespace

Result<std::vector<chat::Message>> ReadChatFile(const std::string& path) {
  DSV4_ASSIGN_OR_RETURN(const chat::JsonValue json, ReadJsonFile(path));
  DSV4_ASSIGN_OR_RETURN(std::vector<chat::Message> messages, chat::ParseMessages(json, path));
  for (size_t i = 0; i < messages.size(); ++i) {
    const chat::Message& message = messages[i];
    if (message.role == chat::Role::kUser && (message.content.kind == chat::Content::Kind::kAbsent ||
                                              message.content.kind == chat::Content::Kind::kNull))
      return Error(
          InvalidArgument(fmt::format("{}: [{}].content: missing, want what the user says", path, i)));
  }
  return messages;
}

Result<std::vector<chat::JsonValue>> ReadToolsFile(const std::string& path) {
  DSV4_ASSIGN_OR_RETURN(const chat::JsonValue json, ReadJsonFile(path));
  return chat::ParseTools(json, path);
}

std::string ChatFileText(std::span<const chat::Message> messages) {
  Json list = Json::array();
  for (const chat::Message& message : messages) {
    Json json = {{"role", chat::RoleName(message.role)}};
    switch (message.content.kind) {
      case chat::Content::Kind::kAbsent:
        break;
      case chat::Content::Kind::kNull:
        json["content"] = nullptr;
        break;
      case chat::Content::Kind::kText:
        json["content"] = message.content.text;
        break;
      case chat::Content::Kind::kParts:
        json["content"] = Json::array();
        for (const chat::ContentPart& part : message.content.parts) {
          json["content"].push_back({{"type", part.type}, {"text", part.text}});
        }
        break;
    }
    if (!message.reasoning_content.empty()) json["reasoning_content"] = message.reasoning_content;
    for (const chat::ToolCall& call : message.tool_calls) {
      json["tool_calls"].push_back({{"id", call.id},
                                    {"type", "function"},
                                    {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    }
    if (!message.tool_call_id.empty()) json["tool_call_id"] = message.tool_call_id;
    list.push_back(std::move(json));
  }
  return list.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Status WriteChatFile(const std::string& path, std::span<const chat::Message> messages) {
  return io::WriteTextFile(path, ChatFileText(messages));
}

}  // namespace dsv4::apps
