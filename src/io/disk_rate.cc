// Measured rate of the disk under some files, past the page cache, and bytes that this process has read.
#include "io/disk_rate.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "base/text.h"

namespace dsv4::io {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kDirectAlignment = 4096;  // Alignment of reads past the file cache.
constexpr size_t kNumReaders = 4;          // As many as ReadAhead has.
constexpr std::chrono::milliseconds kTime(500);

struct File {
  int fd = -1;
  size_t num_pieces = 0;
};

class Files {
 public:
  Files() = default;
  ~Files() {
    for (const File& file : files_) ::close(file.fd);
  }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  Status Open(std::span<const MappedFile> files, size_t piece_bytes, bool direct) {
    for (const MappedFile& file : files) {
      const size_t num_pieces = file.bytes().size() / piece_bytes;
      if (num_pieces == 0) continue;
      const int fd = ::open(file.path().c_str(), O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0));
      if (fd < 0)
        return Status(StatusCode::kUnavailable,
                      fmt::format("{}: cannot open: {}", file.path(), std::strerror(errno)));
      files_.push_back({fd, num_pieces});
      num_pieces_ += num_pieces;
    }
    return num_pieces_ > 0 ? Status()
                           : NotFound(fmt::format("no file of {} to read", Counted(piece_bytes, "byte")));
  }
  size_t num_pieces() const { return num_pieces_; }
  // Bytes read of a piece, or -1.
  ssize_t Read(size_t piece, size_t piece_bytes, void* to) const {
    for (const File& file : files_) {
      if (piece < file.num_pieces)
        return ::pread(file.fd, to, piece_bytes, static_cast<off_t>(piece * piece_bytes));
      piece -= file.num_pieces;
    }
    return -1;
  }

 private:
  std::vector<File> files_;
  size_t num_pieces_ = 0;
};

struct FreedBuffer {
  void operator()(void* memory) const { ::operator delete (memory, std::align_val_t{kDirectAlignment}); }
};

}  // namespace

Result<DiskRate> MeasureDiskRate(std::span<const MappedFile> files, size_t piece_bytes) {
  const size_t bytes = std::max(kDirectAlignment, piece_bytes / kDirectAlignment * kDirectAlignment);
  for (const bool direct : {true, false}) {
    Files open;
    if (Status status = open.Open(files, bytes, direct); !status.ok()) {
      if (direct && status.code() == StatusCode::kUnavailable) continue;
      return Error(std::move(status));
    }
    std::atomic<size_t> next = 0;
    std::atomic<int64_t> num_read = 0;
    std::atomic<bool> failed = false;
    const Clock::time_point begin = Clock::now();
    {
      std::vector<std::jthread> readers;
      for (size_t r = 0; r < kNumReaders; ++r) {
        readers.emplace_back([&] {
          const std::unique_ptr<void, FreedBuffer> memory(
              ::operator new (bytes, std::align_val_t{kDirectAlignment}));
          while (!failed && Clock::now() - begin < kTime) {
            // Far from the one before: a prime that is larger than any number of pieces walks over all of
            // them.
            constexpr size_t kStride = 2'654'435'761;
            const ssize_t got = open.Read(next++ * kStride % open.num_pieces(), bytes, memory.get());
            if (got < 0) failed = true;
            if (got > 0) num_read += got;
          }
        });
      }
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (!failed && num_read > 0)
      return DiskRate{.bytes_per_second = static_cast<double>(num_read) / seconds, .direct = direct};
  }
  return Error(Status(StatusCode::kUnavailable, "the files cannot be read"));
}

std::optional<int64_t> BytesReadFromDisk() {
  std::ifstream file("/proc/self/io");
  std::string word;
  while (file >> word) {
    int64_t bytes = 0;
    if (word == "read_bytes:" && file >> bytes) return bytes;
  }
  return std::nullopt;
}

}  // namespace dsv4::io
