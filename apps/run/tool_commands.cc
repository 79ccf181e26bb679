// User's commands as child processes that answer calls of tools.
#include "apps/run/tool_commands.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>

#include "base/descriptor.h"
#include "base/utf8.h"

namespace dsv4::apps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxOutputBytes = size_t{1} << 20;
constexpr int kPollMilliseconds = 50;
constexpr std::chrono::seconds kPatience(
    2);  // Between the signal that asks a command to end and the one that ends it.

Status NoProcess(const std::string& command, int error) {
  return {StatusCode::kResourceExhausted,
          fmt::format("tool command {}: no process could be made: {}", command, std::strerror(error))};
}

// A file in memory, not a pipe: a command that does not read it ends nothing.
int OpenInput(const std::string& text) {
  const int file = ::memfd_create("arguments", MFD_CLOEXEC);
  if (file < 0) return -1;
  for (size_t at = 0; at < text.size();) {
    const ssize_t wrote = ::write(file, text.data() + at, text.size() - at);
    if (wrote <= 0) {
      ::close(file);
      return -1;
    }
    at += static_cast<size_t>(wrote);
  }
  ::lseek(file, 0, SEEK_SET);
  return file;
}

// 0 or an error number.
int Spawn(const std::string& command, int input, int output, pid_t& process) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
  // A group of its own: Ctrl-C on the terminal is the chat's, which ends the group.
  posix_spawnattr_setpgroup(&attributes, 0);
  sigset_t usual;
  sigemptyset(&usual);
  for (const int signal : {SIGINT, SIGPIPE, SIGTERM, SIGQUIT, SIGHUP}) sigaddset(&usual, signal);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
  std::string shell = "sh";
  std::string flag = "-c";
  std::string text = command;
  const std::array<char*, 4> words = {shell.data(), flag.data(), text.data(), nullptr};
  const int error = ::posix_spawn(&process, "/bin/sh", &files, &attributes, words.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return error;
}

}  // namespace

Result<CommandResult> RunToolCommand(const std::string& command, const std::string& arguments,
                                     const std::function<bool()>& interrupted) {
  const Descriptor input(OpenInput(arguments));
  std::array<int, 2> pipe = {-1, -1};
  if (input.get() < 0 || ::pipe2(pipe.data(), O_CLOEXEC) != 0) return Error(NoProcess(command, errno));
  const Descriptor output(pipe[0]);
  Descriptor write_end(pipe[1]);
  pid_t process = 0;
  if (const int error = Spawn(command, input.get(), write_end.get(), process); error != 0)
    return Error(NoProcess(command, error));
  write_end.Close();

  CommandResult result;
  std::string bytes;
  bool cut = false;
  Clock::time_point asked_to_end;
  for (;;) {
    pollfd file = {.fd = output.get(), .events = POLLIN, .revents = 0};
    const int ready = ::poll(&file, 1, kPollMilliseconds);
    if (!result.cancelled && interrupted && interrupted()) {
      result.cancelled = true;
      asked_to_end = Clock::now();
      ::kill(-process, SIGTERM);
    }
    if (result.cancelled && Clock::now() - asked_to_end > kPatience) {
      ::kill(-process, SIGKILL);
      break;  // One that left the group may still hold the pipe.
    }
    if (ready <= 0) continue;
    std::array<char, 1 << 16> piece;
    const ssize_t got = ::read(output.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    const size_t taken = std::min(static_cast<size_t>(got), kMaxOutputBytes - bytes.size());
    bytes.append(piece.data(), taken);
    cut = cut || taken < static_cast<size_t>(got);
  }
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  if (bytes.ends_with('\n')) bytes.pop_back();
  result.text = RepairUtf8(bytes);
  const auto add = [&](const std::string& note) { result.text += (result.text.empty() ? "" : "\n") + note; };
  if (cut) add("[the rest of the output was left out: more than 1 MiB]");
  if (WIFSIGNALED(status)) add(fmt::format("[ended by signal {}]", WTERMSIG(status)));
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0) add(fmt::format("[exit code {}]", WEXITSTATUS(status)));
  return result;
}

Result<ToolCommands> ToolCommands::Parse(const std::vector<std::string>& entries) {
  ToolCommands commands;
  for (const std::string& entry : entries) {
    const size_t divider = entry.find('=');
    if (divider == std::string::npos || divider == 0 || divider + 1 == entry.size()) {
      return Error(InvalidArgument(fmt::format("--tool-command: got '{}', wanted NAME=COMMAND", entry)));
    }
    commands.Allow(entry.substr(0, divider), entry.substr(divider + 1));
  }
  return commands;
}

const std::string* ToolCommands::Find(std::string_view name) const {
  const auto found = commands_.find(name);
  return found == commands_.end() ? nullptr : &found->second;
}

chat::Message CallingMessage(const chat::ParsedCompletion& answer, int64_t& num_calls) {
  chat::Message message = {.role = chat::Role::kAssistant,
                           .content = answer.content,
                           .reasoning_content = answer.reasoning_content};
  for (const chat::ParsedCall& call : answer.tool_calls) {
    message.tool_calls.push_back(
        {.id = fmt::format("call_{}", num_calls++), .name = call.name, .arguments = call.arguments});
  }
  return message;
}

}  // namespace dsv4::apps
