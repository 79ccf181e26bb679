// Pool of pinned host buffers, kept for the next caller of the same size.
#include "backend/cuda/runtime/pinned_blocks.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>

namespace dsv4::backend::cuda {

PinnedBlocks::~PinnedBlocks() {
  for (const auto& [data, num_bytes] : blocks_) cudaFreeHost(const_cast<std::byte*>(data));
}

Result<Buffer> PinnedBlocks::Allocate(size_t num_bytes) {
  constexpr size_t kMinBlockBytes = 4096;
  if (num_bytes > kMaxBlockBytes) return HostMemory().Allocate(num_bytes);
  const size_t rounded = std::bit_ceil(std::max(num_bytes, kMinBlockBytes));
  void* data = nullptr;
  {
    const std::lock_guard lock(mutex_);
    // The one used last first: a step that comes again then finds its logits at the same address.
    if (std::vector<void*>& unused = unused_[rounded]; !unused.empty()) {
      data = unused.back();
      unused.pop_back();
    }
  }
  if (data == nullptr) {
    if (cudaMallocHost(&data, rounded) != cudaSuccess) {
      cudaGetLastError();
      return HostMemory().Allocate(num_bytes);
    }
    const std::lock_guard lock(mutex_);
    blocks_.emplace(static_cast<const std::byte*>(data), rounded);
  }
  return Buffer(std::shared_ptr<void>(data, [self = shared_from_this()](void* p) { self->GiveBack(p); }),
                num_bytes, Device{});
}

bool PinnedBlocks::Holds(const void* data, size_t num_bytes) const {
  const auto* const begin = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  const auto after = blocks_.upper_bound(begin);
  if (after == blocks_.begin()) return false;
  const auto& [block, length] = *std::prev(after);
  return static_cast<size_t>(begin - block) + num_bytes <= length;
}

void PinnedBlocks::GiveBack(void* data) {
  const std::lock_guard lock(mutex_);
  unused_[blocks_.at(static_cast<const std::byte*>(data))].push_back(data);
}

}  // namespace dsv4::backend::cuda
