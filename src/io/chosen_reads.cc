// Reader threads that bring chosen ranges of mapped files from disk before they are needed.
#include "io/chosen_reads.h"

namespace dsv4::io {

void ChosenReads::Ask(Ranges ranges) {
  if (!started()) return;
  int64_t num_bytes = 0;
  for (const std::span<const std::byte> range : ranges) num_bytes += static_cast<int64_t>(range.size());
  num_bytes_.fetch_add(num_bytes, std::memory_order_relaxed);
  const std::vector<std::span<const std::byte>> rest = WithoutAsked(ranges);
  if (!rest.empty()) read_ahead_.Add(rest);
}

void ChosenReads::AskAhead(Ranges ranges) {
  if (!started()) return;
  {
    const std::lock_guard lock(mutex_);
    ahead_.clear();
    for (const std::span<const std::byte> range : ranges) ahead_.emplace(range.data(), range.size());
  }
  if (!ranges.empty()) read_ahead_.Add(ranges);
}

int64_t ChosenReads::num_bytes_ahead() const {
  const std::lock_guard lock(mutex_);
  int64_t num_bytes = 0;
  for (const auto& [begin, size] : ahead_) num_bytes += static_cast<int64_t>(size);
  return num_bytes;
}

std::vector<std::span<const std::byte>> ChosenReads::WithoutAsked(Ranges ranges) {
  const std::lock_guard lock(mutex_);
  std::vector<std::span<const std::byte>> rest;
  for (const std::span<const std::byte> range : ranges) {
    if (ahead_.erase({range.data(), range.size()}) == 0) rest.push_back(range);
  }
  return rest;
}

}  // namespace dsv4::io
