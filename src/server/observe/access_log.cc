// Access log lines, quoted, appended and reopened on request.
#include "server/observe/access_log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

namespace dsv4::server {
namespace {

// A client chooses its path: no line may look like two.
std::string Quoted(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      out += c;
  }
  return out;
}

Result<int> OpenFile(const std::string& path) {
  const int descriptor = path == "-" ? ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)
                                     : ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor < 0) return Error(InvalidArgument(fmt::format("{}: {}", path, std::strerror(errno))));
  return descriptor;
}

}  // namespace

Result<std::unique_ptr<AccessLog>> AccessLog::Open(const std::string& path) {
  DSV4_ASSIGN_OR_RETURN(const int descriptor, OpenFile(path));
  return std::unique_ptr<AccessLog>(new AccessLog(path, descriptor));
}

Status AccessLog::Reopen() {
  if (path_ == "-") return {};
  DSV4_ASSIGN_OR_RETURN_STATUS(const int descriptor, OpenFile(path_));
  // Whole lines go to the one or to the other.
  const bool moved = ::dup3(descriptor, descriptor_, O_CLOEXEC) >= 0;
  const int error = errno;
  ::close(descriptor);
  return moved ? Status() : InvalidArgument(fmt::format("{}: {}", path_, std::strerror(error)));
}

void AccessLog::Write(const AccessLine& line) {
  const auto now = std::chrono::system_clock::now();
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  const std::string text = fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}+0000 {} \"{} {}\" {} {} {:.3f} {}\n",
                                       fmt::gmtime(std::chrono::system_clock::to_time_t(now)), milliseconds,
                                       line.client.empty() ? "-" : line.client, Quoted(line.method),
                                       Quoted(line.path), line.status, line.num_bytes, line.seconds, line.id);
  writer_.Write(text);
}

}  // namespace dsv4::server
