// A file of known size that is written and read back at any offset, from several threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"

namespace dsv4::io {

class RandomAccessFile {
 public:
  // Opens the file, which is created or brought to `num_bytes` where needed. Its room on the disk is reserved
  // where the file system can, so that a full disk shows now and not half-way: ResourceExhausted.
  // InvalidArgument when the path is something else than a regular file.
  static Result<RandomAccessFile> Open(const std::string& path, int64_t num_bytes);

  RandomAccessFile(RandomAccessFile&& other) noexcept;
  RandomAccessFile& operator=(RandomAccessFile&& other) noexcept;
  RandomAccessFile(const RandomAccessFile&) = delete;
  RandomAccessFile& operator=(const RandomAccessFile&) = delete;
  ~RandomAccessFile();

  const std::string& path() const { return path_; }
  // All of `bytes`, or ResourceExhausted (no space, an input or output error). Thread-safe.
  Status WriteAt(int64_t offset, std::span<const std::byte> bytes) const;
  // Exactly `bytes.size()` bytes; DataLoss when the file ends before. Thread-safe.
  Status ReadAt(int64_t offset, std::span<std::byte> bytes) const;
  // Returns when everything written has reached the disk; it has then left the page cache.
  Status Sync() const;

 private:
  RandomAccessFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_ = -1;
};

}  // namespace dsv4::io
