// Conversations and tools in files, as --messages, --tools and the chat's /save, /load and /tools have them.
#pragma once

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

}  // namespace dsv4::apps
