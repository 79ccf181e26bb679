// File of the last conversation, replaced whole and readable by its owner.
#include "apps/shared/last_conversation.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>

#include "apps/shared/chat_file.h"
#include "apps/terminal/state_path.h"
#include "base/log.h"
#include "base/write_file.h"

namespace dsv4::apps {
namespace {

// One write behind a rename, so that a reader never sees half of it. What is no ordinary file is left alone.
Status Replace(const std::string& path, const std::string& text) {
  struct stat status = {};
  if (::lstat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    return InvalidArgument(fmt::format("{}: no ordinary file", path));
  }
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  return WriteFile(path, text, {.flush = false});
}

}  // namespace

std::string LastConversationPath() { return StatePath("DSV4_CONVERSATION", "last_conversation.json"); }

void KeepConversation(std::span<const chat::Message> messages) {
  const std::string path = LastConversationPath();
  if (path.empty() || messages.empty() || !messages.back().tool_calls.empty()) return;
  const Status kept = Replace(path, ChatFileText(messages));
  if (!kept.ok()) LogInfo(fmt::format("the conversation is not kept for --continue: {}", kept.message()));
}

Result<std::vector<chat::Message>> ReadLastConversation() {
  const std::string path = LastConversationPath();
  if (path.empty()) {
    return Error(
        NotFound("run --continue: no conversation is kept, as DSV4_CONVERSATION or a missing HOME says"));
  }
  Result<std::vector<chat::Message>> messages = ReadChatFile(path);
  if (!messages && messages.error().code() == StatusCode::kNotFound) {
    return Error(NotFound(
        fmt::format("run --continue: {}: no such file, so there is no conversation to go on with", path)));
  }
  return messages;
}

}  // namespace dsv4::apps
