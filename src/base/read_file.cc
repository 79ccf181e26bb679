// Whole files as strings, without waiting for pipes, and with the path in each error.
#include "base/read_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/descriptor.h"
#include "base/text.h"

namespace dsv4 {
namespace {

Status OpenError(const std::string& path, int error) {
  if (error == ENOENT) return NotFound(fmt::format("{}: no such file", path));
  return InvalidArgument(fmt::format("{}: cannot open: {}", path, std::strerror(error)));
}

}  // namespace

Result<std::string> ReadFile(const std::string& path, FileKind kind, size_t max_bytes) {
  // O_NONBLOCK: a pipe without a writer is refused below. A regular file of the kernel that has no bytes now
  // (/proc/kmsg) fails to be read. Neither is waited for.
  const int wait = kind == FileKind::kRegular ? O_NONBLOCK : 0;
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | wait));
  if (file.get() < 0) return Error(OpenError(path, errno));
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) return Error(OpenError(path, errno));
  if (S_ISDIR(status.st_mode))
    return Error(InvalidArgument(fmt::format("{}: a directory, wanted a file", path)));
  if (kind == FileKind::kRegular && !S_ISREG(status.st_mode)) {
    return Error(InvalidArgument(fmt::format("{}: not a regular file", path)));
  }
  const auto too_long = [&] {
    return Error(InvalidArgument(fmt::format("{}: longer than {}", path, Counted(max_bytes, "byte"))));
  };
  if (S_ISREG(status.st_mode) && static_cast<size_t>(status.st_size) > max_bytes) return too_long();
  std::string text;
  std::array<char, 65536> block;
  for (;;) {
    const ssize_t count = ::read(file.get(), block.data(), block.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return Error(DataLoss(fmt::format("{}: reading failed after {}: {}", path, Counted(text.size(), "byte"),
                                        std::strerror(errno))));
    }
    if (count == 0) return text;
    text.append(block.data(), static_cast<size_t>(count));
    if (text.size() > max_bytes) return too_long();
  }
}

}  // namespace dsv4
