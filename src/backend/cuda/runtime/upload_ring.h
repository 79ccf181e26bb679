// UploadRing: brings bytes from the host's ordinary memory to a device. Threads copy pieces into pinned
// blocks side by side. Pages of a mapped checkpoint are thereby read from disk side by side. The device
// fetches a block as soon as it is full, while others are being filled.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "backend/cuda/runtime/device_queue.h"
#include "base/parallel.h"

namespace dsv4::backend::cuda {

// Ring for one queue, which outlives it. One Copy at a time.
class UploadRing {
 public:
  // Fewer bytes are copied by the calling thread alone.
  static constexpr size_t kPieceBytes = size_t{512} << 10;

  // `num_threads` >= 1 counts the calling thread. ResourceExhausted without memory for the blocks.
  static Result<std::unique_ptr<UploadRing>> Create(DeviceQueue& queue, int num_threads);
  ~UploadRing();
  UploadRing(const UploadRing&) = delete;
  UploadRing& operator=(const UploadRing&) = delete;

  // Queued on `stream` behind what is there; `source` has been read when it returns.
  cudaError_t Copy(void* destination, const void* source, size_t num_bytes, cudaStream_t stream);

 private:
  struct Block {
    std::mutex mutex;  // Held by the thread that fills it.
    Buffer memory;
    cudaEvent_t fetched = nullptr;  // By the device, what was in it last.
  };
  // Twice as many as threads would do; more let those go on that find their pages in memory.
  static constexpr size_t kNumBlocks = 32;

  UploadRing(int device, int num_threads) : device_(device), pool_(num_threads) {}
  cudaError_t CopyPiece(std::byte* destination, const std::byte* source, size_t num_bytes,
                        cudaStream_t stream);

  const int device_;
  ThreadPool pool_;
  std::array<Block, kNumBlocks> blocks_;
  std::atomic<size_t> next_block_ = 0;
};

}  // namespace dsv4::backend::cuda
