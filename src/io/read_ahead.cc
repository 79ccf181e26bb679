// Threads that touch pieces of mapped files ahead of their reader.
#include "io/read_ahead.h"

#include <algorithm>
#include <system_error>

#include "io/mapped_file.h"

namespace dsv4::io {
namespace {

constexpr size_t kNumThreads = 4;
// Handed to the kernel at a time, which is as long as an end may have to wait for.
constexpr size_t kReadAheadBytes = size_t{8} << 20;

}  // namespace

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
}

void ReadAhead::Add(std::span<const std::span<const std::byte>> ranges) {
  const std::lock_guard lock(mutex_);
  for (std::span<const std::byte> range : ranges) {
    while (!range.empty()) {
      pieces_.push_back(range.first(std::min(kReadAheadBytes, range.size())));
      range = range.subspan(pieces_.back().size());
    }
  }
  changed_.notify_all();
  try {
    while (threads_.size() < kNumThreads) threads_.emplace_back([this] { Work(); });
  } catch (const std::system_error&) {
    return;  // No thread to be had: those that there are do it, or none does.
  }
}

size_t ReadAhead::num_waiting() const {
  const std::lock_guard lock(mutex_);
  return pieces_.size();
}

void ReadAhead::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !pieces_.empty(); });
    if (stopping_) return;
    const std::span<const std::byte> piece = pieces_.front();
    pieces_.pop_front();
    lock.unlock();
    AdviseWillNeed(piece);
    lock.lock();
  }
}

}  // namespace dsv4::io
