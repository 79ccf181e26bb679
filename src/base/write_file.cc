// Whole files under their names, and all bytes to an open file.
#include "base/write_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <thread>

#include "base/text.h"

namespace dsv4 {
namespace {

Status SystemError(const std::string& path, std::string_view action, int error) {
  return {StatusCode::kUnavailable, fmt::format("{}: {}: {}", path, action, std::strerror(error))};
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Status WritePart(const std::string& part, std::string_view text, const WriteFileOptions& options) {
  const int file = ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, options.mode);
  if (file < 0) return SystemError(part, "cannot create", errno);
  Status status = WriteAll(file, text, part);
  if (status.ok() && options.flush && ::fsync(file) != 0) status = SystemError(part, "cannot flush", errno);
  // A network's file system says here that the disk is full.
  if (::close(file) != 0 && status.ok()) status = SystemError(part, "cannot write", errno);
  return status;
}

Status Publish(const std::string& part, const std::string& path, bool keep_first) {
  if (!keep_first)
    return ::rename(part.c_str(), path.c_str()) == 0 ? Status()
                                                     : SystemError(path, "cannot rename to it", errno);
  // The first of several processes wins.
  const bool there = ::link(part.c_str(), path.c_str()) == 0 || errno == EEXIST;
  return there ? Status() : SystemError(path, "cannot link to it", errno);
}

}  // namespace

Status WriteAll(int descriptor, std::span<const std::byte> bytes, const std::string& name) {
  const size_t all = bytes.size();
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return SystemError(
          name, fmt::format("cannot write, after {} of {}", all - bytes.size(), Counted(all, "byte")), errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return {};
}

Status WriteAll(int descriptor, std::string_view text, const std::string& name) {
  return WriteAll(descriptor, std::as_bytes(std::span(text)), name);
}

Status SyncDirectory(const std::string& directory) {
  const int file = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return SystemError(directory, "cannot open", errno);
  const Status status = ::fsync(file) == 0 ? Status() : SystemError(directory, "cannot flush", errno);
  ::close(file);
  return status;
}

Status WriteFile(const std::string& path, std::string_view text, WriteFileOptions options) {
  // A random name: processes of several machines can have the same number.
  uint64_t number = 0;
  if (::getrandom(&number, sizeof(number), 0) != sizeof(number))
    return SystemError(path, "no random bytes", errno);
  const std::string part = fmt::format("{}.{:016x}.part", path, number);
  Status status = WritePart(part, text, options);
  if (status.ok()) status = Publish(part, path, options.keep_first);
  if (!status.ok() || options.keep_first) ::unlink(part.c_str());
  if (status.ok() && options.flush) status = SyncDirectory(FolderOf(path));
  return status;
}

// flock itself knows no patience.
Result<Descriptor> LockFile(const std::string& path, int flags, mode_t mode,
                            std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kTick(2);
  const auto failed = [&](const char* what) {
    return Error(errno == ENOENT ? StatusCode::kNotFound : StatusCode::kUnavailable,
                 fmt::format("{}: {}: {}", path, what, std::strerror(errno)));
  };
  Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, mode));
  if (file.get() < 0) return failed("cannot open");
  const auto until = std::chrono::steady_clock::now() + patience;
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR)
      return failed("cannot lock, which the file system has to know");
    if (std::chrono::steady_clock::now() > until) {
      return Error(StatusCode::kDeadlineExceeded,
                   fmt::format("{}: another program has held the lock for {:g} s", path,
                               std::chrono::duration<double>(patience).count()));
    }
    std::this_thread::sleep_for(kTick);
  }
  return file;
}

}  // namespace dsv4
