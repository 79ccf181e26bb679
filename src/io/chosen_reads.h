// ChosenReads: has weights that are chosen from step to step brought from disk before they are multiplied. It
// is for a model that is larger than the memory it may use. The kernel keeps the pages that were read lately.
// A page that is touched before it was asked for is read alone, with its neighbours.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "io/read_ahead.h"

namespace dsv4::io {

class ChosenReads {
 public:
  using Ranges = std::span<const std::span<const std::byte>>;

  // Before, Ask does nothing: a model that fits has no use for it.
  void Start() { started_.store(true, std::memory_order_release); }
  bool started() const { return started_.load(std::memory_order_acquire); }

  // Ranges of mapped files in the order in which they will be read. Returns at once. The files stay mapped as
  // long as this lives.
  void Ask(Ranges ranges);
  // Ranges that Ask will be called with in the step that begins, as they are here. They are read from now on,
  // and counted when Ask names them, which does not read them again. Forgets those of the step before.
  void AskAhead(Ranges ranges);

  // Named by Ask so far. What of them was in memory is not read again.
  int64_t num_bytes() const { return num_bytes_.load(std::memory_order_relaxed); }
  // Bytes of the last AskAhead that Ask has not named yet.
  int64_t num_bytes_ahead() const;

 private:
  // Ranges among these that nothing has asked for ahead.
  std::vector<std::span<const std::byte>> WithoutAsked(Ranges ranges);

  std::atomic<bool> started_ = false;
  std::atomic<int64_t> num_bytes_ = 0;
  mutable std::mutex mutex_;
  std::set<std::pair<const std::byte*, size_t>> ahead_;
  ReadAhead read_ahead_;
};

}  // namespace dsv4::io
