// InputFile: a regular file that stays open for reading, and the stamp by which a later change of it shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace dsv4::io {

// Which file it is, and when it was changed last. The kernel moves `ctime` on with every write and every
// change of the other times, so that a program cannot put it back.
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t size = 0;
  int64_t mtime = 0;  // Nanoseconds.
  int64_t ctime = 0;

  friend bool operator==(const FileStamp& a, const FileStamp& b) = default;
};

// Immutable and thread-safe.
class InputFile {
 public:
  // NotFound when there is no such file; InvalidArgument when it is not a regular file or cannot be opened (a
  // symbolic link that leads back to itself, missing permission).
  static Result<std::shared_ptr<const InputFile>> Open(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  // When it was opened.
  const FileStamp& stamp() const { return stamp_; }
  // DataLoss where the file was written to, or its times were set, since it was opened. Costs a system call.
  Status Unchanged() const;
  // Exactly `bytes.size()` bytes; DataLoss when the file ends before, or its disk fails.
  Status ReadAt(int64_t offset, std::span<std::byte> bytes) const;

 private:
  InputFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_ = -1;
  FileStamp stamp_;
};

}  // namespace dsv4::io
