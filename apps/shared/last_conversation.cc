#include "apps/shared/last_conversation.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "apps/shared/chat_file.h"
#include "apps/shared/state_path.h"
#include "base/log.h"

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
  const std::string partial = fmt::format("{}.{}", path, ::getpid());
  const int file = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return Internal(fmt::format("{}: {}", partial, std::strerror(errno)));
  size_t done = 0;
  int error = 0;
  while (done < text.size() && error == 0) {
    const ssize_t wrote = ::write(file, text.data() + done, text.size() - done);
    if (wrote >= 0) done += static_cast<size_t>(wrote);
    if (wrote < 0 && errno != EINTR) error = errno;
  }
  if (::close(file) != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(partial.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return {};
  ::unlink(partial.c_str());
  return Internal(fmt::format("{}: {}", path, std::strerror(error)));
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
