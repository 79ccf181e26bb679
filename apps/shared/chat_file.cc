// Conversation and tool files, read with errors and written.
#include "apps/shared/chat_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/json.h"
#include "base/read_file.h"
#include "io/output_file.h"

namespace dsv4::apps {
namespace {

Result<chat::JsonValue> ReadJsonFile(const std::string& path) {
  DSV4_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, FileKind::kAny));
  return chat::ReadJson(text, path);
}

constexpr std::string_view kWhiteSpace = " \t\r\n";

Result<std::vector<int32_t>> ParseJsonIds(const std::string& text, const std::string& what) {
  DSV4_ASSIGN_OR_RETURN(const Json json, ParseJson(text, what));
  std::vector<int32_t> ids;
  for (const Json& item : json) {
    if (!item.is_number_integer() || item < 0 || item > std::numeric_limits<int32_t>::max()) {
      return Error(InvalidArgument(
          fmt::format("{}: entry {}: got {}, wanted a token id", what, ids.size(), item.dump())));
    }
    ids.push_back(item.get<int32_t>());
  }
  return ids;
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
  return JsonText(list, 2) + "\n";
}

Status WriteChatFile(const std::string& path, std::span<const chat::Message> messages) {
  return io::WriteTextFile(path, ChatFileText(messages));
}

Result<std::vector<int32_t>> ParseTokenIds(const std::string& text, const std::string& what) {
  const size_t first = text.find_first_not_of(kWhiteSpace);
  if (first == std::string::npos) return Error(InvalidArgument(fmt::format("{}: no token ids", what)));
  if (text[first] == '[') return ParseJsonIds(text, what);

  std::vector<int32_t> ids;
  for (size_t begin = first; begin != std::string::npos; begin = text.find_first_not_of(kWhiteSpace, begin)) {
    const size_t end = std::min(text.find_first_of(kWhiteSpace, begin), text.size());
    int32_t id = -1;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, id);
    if (error != std::errc() || stop != text.data() + end || id < 0) {
      return Error(InvalidArgument(fmt::format("{}: entry {}: got '{}', wanted a token id", what, ids.size(),
                                               text.substr(begin, std::min<size_t>(end - begin, 40)))));
    }
    ids.push_back(id);
    begin = end;
  }
  return ids;
}

}  // namespace dsv4::apps
