// ContentDigest: a hash of every byte of a checkpoint, made by threads of low priority while the model loads
// or runs.
//
// Files are hashed in pieces, several at a time and in any order. A piece that a loader has just read can so
// come first, while it is in memory. Bytes are read by way of the open files, past the mappings. A digest is
// a function of the files' bytes alone.
//
// It is known when all bytes were read and no file was changed since it was opened. A later change makes it
// unknown for good: nothing says then which bytes the model was computed with.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/status.h"
#include "io/checkpoint.h"

namespace dsv4::io {

class ContentDigest {
 public:
  // Reads nothing before Follow or Start. `past_cache`: files are larger than memory, so what is read must
  // not push out what is in it.
  explicit ContentDigest(const std::shared_ptr<const Checkpoint>& checkpoint, bool past_cache = false);
  // Leaves what was not begun.
  ~ContentDigest();
  ContentDigest(const ContentDigest&) = delete;
  ContentDigest& operator=(const ContentDigest&) = delete;

  // These ranges of the mapped files, which the caller has just read, come next.
  void Follow(std::span<const std::span<const std::byte>> ranges);
  // Everything that has not been read. May be called again.
  void Start();

  static constexpr std::chrono::milliseconds kForever = std::chrono::milliseconds::max();
  // Starts, and waits at most so long. Unavailable: not known yet; DataLoss: it never will be, and which file
  // is at fault.
  Result<uint64_t> Wait(std::chrono::milliseconds at_most);
  // DataLoss where a file was changed since it was opened. A system call a file.
  Status Unchanged() const;

 private:
  struct File {
    std::shared_ptr<const InputFile> file;  // Null for one in memory.
    std::span<const std::byte> bytes;       // Mapped; of one with a file only an address, which may be gone.
    size_t first_piece = 0;
  };

  size_t NumPieces(const File& file) const;
  void StartThreads();
  void Work();
  // The next piece to hash, of those wanted first, and then in order; none: nothing is left to begin.
  std::optional<size_t> Next();
  Result<uint64_t> HashPiece(size_t piece, std::span<std::byte> room) const;

  std::vector<File> files_;
  std::shared_ptr<const Checkpoint> memory_;  // Keeps the bytes of files that exist only in memory.
  const bool past_cache_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint64_t> hashes_;  // By piece.
  std::vector<bool> begun_;
  std::deque<size_t> wanted_;
  size_t next_ = 0;  // Every piece before it has been begun.
  size_t num_done_ = 0;
  bool all_wanted_ = false;
  bool stopping_ = false;
  Status failed_;
  std::vector<std::jthread> threads_;
};

}  // namespace dsv4::io
