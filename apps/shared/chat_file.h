// Conversations, tools and token ids in files, as --messages, --tools and the chat's /save, /load and /tools have them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "chat/message.h"

namespace dsv4::apps {

// A JSON list of messages, as in an API request. Errors name the file and the field.
Result<std::vector<chat::Message>> ReadChatFile(const std::string& path);
// A JSON list of tools, as in an API request.
Result<std::vector<chat::JsonValue>> ReadToolsFile(const std::string& path);
// Text as ReadChatFile reads it.
std::string ChatFileText(std::span<const chat::Message> messages);
// Writes it. The file is replaced as a whole; errors name it.
Status WriteChatFile(const std::string& path, std::span<const chat::Message> messages);
// Ids from text: JSON ("[1, 2]") or separated by white space. `what` names the source in errors.
Result<std::vector<int32_t>> ParseTokenIds(const std::string& text, const std::string& what);

}  // namespace dsv4::apps
