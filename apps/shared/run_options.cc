// Prompt and messages of RunOptions: words, standard input, files.
#include "apps/shared/run_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <span>

#include "apps/shared/chat_file.h"
#include "apps/shared/last_conversation.h"
#include "base/utf8.h"

namespace dsv4::apps {

Status CheckUtf8(std::string_view name, std::string_view text) {
  const size_t offset = FindInvalidUtf8(text);
  if (offset == std::string_view::npos) return {};
  return InvalidArgument(fmt::format("{}: not valid UTF-8 at byte {} (0x{:02X})", name, offset,
                                     static_cast<unsigned char>(text[offset])));
}

namespace {

// A conversation from a file ends in something to answer.
Status CheckAsked(std::span<const chat::Message> messages, const std::string& path) {
  const bool asks = std::ranges::any_of(messages, [](const chat::Message& message) {
    return message.role != chat::Role::kSystem && message.role != chat::Role::kAssistant;
  });
  if (!asks) return InvalidArgument(path + ": nothing is asked, want a message of the user");
  const chat::Message& last = messages.back();
  const auto is_blank = [](const std::string& text) {
    return text.find_first_not_of(" \t\r\n") == std::string::npos;
  };
  const bool is_empty = (last.content.kind == chat::Content::Kind::kText && is_blank(last.content.text)) ||
                        (last.content.kind == chat::Content::Kind::kParts &&
                         std::ranges::all_of(last.content.parts, [&](const chat::ContentPart& part) {
                           return part.type == "text" && is_blank(part.text);
                         }));
  if (last.role == chat::Role::kUser && is_empty)
    return InvalidArgument(
        fmt::format("{}: [{}].content: empty, want what the user says", path, messages.size() - 1));
  if (last.role == chat::Role::kAssistant && !last.wo_eos)
    return InvalidArgument(path + ": ends with an answer, want a message of the user behind it");
  return {};
}

}  // namespace

Result<std::vector<chat::Message>> MakeMessages(const RunOptions& options, const std::string& prompt) {
  std::vector<chat::Message> messages;
  if (options.go_on) {
    DSV4_ASSIGN_OR_RETURN(messages, ReadLastConversation());
    messages.push_back({.role = chat::Role::kUser, .content = prompt});
  } else if (!options.messages_path.empty()) {
    DSV4_ASSIGN_OR_RETURN(messages, ReadChatFile(options.messages_path));
    DSV4_TRY(CheckAsked(messages, options.messages_path));
  } else {
    if (!options.system.empty()) {
      messages.push_back({.role = chat::Role::kSystem, .content = options.system});
    }
    messages.push_back({.role = chat::Role::kUser, .content = prompt});
  }
  if (!options.tools_path.empty()) {
    DSV4_ASSIGN_OR_RETURN(std::vector<chat::JsonValue> tools, ReadToolsFile(options.tools_path));
    chat::AttachTools(messages, std::move(tools));
  }
  return messages;
}

Result<std::string> ReadPrompt(const RunOptions& options) {
  if (!options.prompt) return std::string();
  if (*options.prompt != "-") return *options.prompt;
  std::string text(std::istreambuf_iterator<char>(std::cin), {});
  DSV4_TRY(CheckUtf8("standard input", text));
  return text;
}

}  // namespace dsv4::apps
