// ReadAhead: has ranges of mapped files brought from disk while the caller works on those before. Threads of
// its own hand the kernel one piece after the other, so that a disk always has several to read. Speed only:
// nothing waits for it, and what it has not asked for is read when it is touched.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace dsv4::io {

class ReadAhead {
 public:
  ReadAhead() = default;
  // Leaves what it has not begun.
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Ranges of MappedFiles, in the order in which they will be read; they stay mapped as long as this lives.
  // Starts the threads when it is called first; where none can be started, nothing is read ahead.
  void Add(std::span<const std::span<const std::byte>> ranges);
  // Pieces that no thread has begun.
  size_t num_waiting() const;

 private:
  void Work();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::span<const std::byte>> pieces_;
  bool stopping_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace dsv4::io
