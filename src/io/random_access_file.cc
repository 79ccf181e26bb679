// File of fixed size with positioned reads and writes from several threads, and sync.
#include "io/random_access_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "io/output_file.h"

namespace dsv4::io {
Result<RandomAccessFile> RandomAccessFile::Open(const std::string& path, int64_t num_bytes) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (descriptor < 0) return Error(FileError(path, "create"));
  RandomAccessFile file(path, descriptor);
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0) return Error(FileError(path, "examine"));
  if (!S_ISREG(status.st_mode)) return Error(InvalidArgument(fmt::format("{}: not a regular file", path)));
  if (status.st_size != num_bytes && ::ftruncate(descriptor, num_bytes) != 0)
    return Error(FileError(path, fmt::format("make room for {}", Counted(num_bytes, "byte"))));
  // Not posix_fallocate, which writes zeros where the file system cannot reserve.
  if (num_bytes > 0 && ::fallocate(descriptor, 0, 0, num_bytes) != 0 && errno != EOPNOTSUPP &&
      errno != ENOSYS) {
    return Error(FileError(path, fmt::format("make room for {}", Counted(num_bytes, "byte"))));
  }
  return file;
}

RandomAccessFile::RandomAccessFile(RandomAccessFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

RandomAccessFile& RandomAccessFile::operator=(RandomAccessFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

RandomAccessFile::~RandomAccessFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status RandomAccessFile::WriteAt(int64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor_, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return FileError(path_, "write", written < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += written;
  }
  return {};
}

Status RandomAccessFile::ReadAt(int64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(descriptor_, bytes.data(), bytes.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(path_, "read");
    if (got == 0) {
      return DataLoss(fmt::format("{}: ends at byte {}, {} more were wanted", path_, offset, bytes.size()));
    }
    bytes = bytes.subspan(static_cast<size_t>(got));
    offset += got;
  }
  return {};
}

Status RandomAccessFile::Sync() const {
  if (::fsync(descriptor_) != 0) return FileError(path_, "write");
  // Speed only: written piece by piece, the file lies in small pages of the cache; what maps it reads it into
  // huge ones.
  ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
  return {};
}

}  // namespace dsv4::io
