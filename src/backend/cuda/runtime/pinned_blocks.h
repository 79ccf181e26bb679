// PinnedBlocks: host memory that the device writes to at the full rate of its link, kept for the next time.
// To pin memory takes the driver longer than a step takes, so blocks are never given back to it.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tensor/tensor.h"

namespace dsv4::backend::cuda {

// Thread-safe. Buffers keep it alive.
class PinnedBlocks : public std::enable_shared_from_this<PinnedBlocks> {
 public:
  // Beyond that, and where the driver pins no more, memory is the host's ordinary one, which works and is
  // slower. Logits of a prompt's rows take gigabytes, those of a step of 256 sequences 126 MB.
  static constexpr size_t kMaxBlockBytes = size_t{256} << 20;

  PinnedBlocks() = default;
  ~PinnedBlocks();
  PinnedBlocks(const PinnedBlocks&) = delete;
  PinnedBlocks& operator=(const PinnedBlocks&) = delete;

  // Contents unspecified. With the device current.
  Result<Buffer> Allocate(size_t num_bytes);
  // Whether all of it lies in one block.
  bool Holds(const void* data, size_t num_bytes) const;

 private:
  void GiveBack(void* data);

  mutable std::mutex mutex_;
  std::map<const std::byte*, size_t> blocks_;    // All of them, by where they begin: how long.
  std::map<size_t, std::vector<void*>> unused_;  // By length.
};

}  // namespace dsv4::backend::cuda
