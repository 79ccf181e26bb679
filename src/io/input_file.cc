// Files that stay open, with what tells of their change.
#include "io/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/text.h"

namespace dsv4::io {
namespace {

Status OpenError(const std::string& path, int error) {
  const std::string message = fmt::format("{}: cannot open: {}", path, std::strerror(error));
  return error == ENOENT ? NotFound(message) : InvalidArgument(message);
}

int64_t Nanoseconds(const timespec& time) { return time.tv_sec * 1'000'000'000 + time.tv_nsec; }

FileStamp StampOf(const struct stat& status) {
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .size = status.st_size,
          .mtime = Nanoseconds(status.st_mtim),
          .ctime = Nanoseconds(status.st_ctim)};
}

}  // namespace

Result<std::shared_ptr<const InputFile>> InputFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must fail below instead of waiting for a writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return Error(OpenError(path, errno));
  const std::shared_ptr<InputFile> file(new InputFile(path, descriptor));
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0) return Error(OpenError(path, errno));
  if (!S_ISREG(status.st_mode)) return Error(InvalidArgument(fmt::format("{}: not a regular file", path)));
  file->stamp_ = StampOf(status);
  return std::shared_ptr<const InputFile>(file);
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status InputFile::Unchanged() const {
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0)
    return DataLoss(fmt::format("{}: cannot be examined any more: {}", path_, std::strerror(errno)));
  // The last name of a file may go: what is open stays as it is, but its time of change moves on.
  const FileStamp now = StampOf(status);
  FileStamp same = stamp_;
  if (status.st_nlink == 0) same.ctime = now.ctime;
  if (now == same) return {};
  return DataLoss(fmt::format("{}: was changed after it was opened ({} then, {} now)", path_,
                              Counted(stamp_.size, "byte"), now.size));
}

Status InputFile::ReadAt(int64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(descriptor_, bytes.data(), bytes.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return DataLoss(fmt::format("{}: cannot read: {}", path_, std::strerror(errno)));
    if (got == 0) return DataLoss(fmt::format("{}: ends at byte {}, and was longer", path_, offset));
    bytes = bytes.subspan(static_cast<size_t>(got));
    offset += got;
  }
  return {};
}

}  // namespace dsv4::io
