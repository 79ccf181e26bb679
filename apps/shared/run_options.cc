// Prompt and messages of RunOptions: words, standard input, files.
#include "apps/shared/run_options.h"

#include <fmt/format.h>

#include <iostream>
#include <iterator>

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

Result<std::vector<chat::Message>> MakeMessages(const RunOptions& options, const std::string& prompt) {
  std::vector<chat::Message> messages;
  if (options.go_on) {
    DSV4_ASSIGN_OR_RETURN(messages, ReadLastConversation());
    messages.push_back({.role = chat::Role::kUser, .content = prompt});
  } else if (!options.messages_path.empty()) {
    DSV4_ASSIGN_OR_RETURN(messages, ReadChatFile(options.messages_path));
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
