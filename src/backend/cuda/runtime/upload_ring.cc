// Ring of pinned pieces by which ordinary host memory is copied to a device.
#include "backend/cuda/runtime/upload_ring.h"

#include <algorithm>
#include <cstring>

namespace dsv4::backend::cuda {

Result<std::unique_ptr<UploadRing>> UploadRing::Create(DeviceQueue& queue, int num_threads) {
  std::unique_ptr<UploadRing> ring(new UploadRing(queue.device().index, num_threads));
  for (Block& block : ring->blocks_) {
    DSV4_ASSIGN_OR_RETURN(block.memory, queue.AllocateOnHost(kPieceBytes));
    // With the device current, which AllocateOnHost has made.
    if (const cudaError_t error = cudaEventCreateWithFlags(&block.fetched, cudaEventDisableTiming);
        error != cudaSuccess) {
      return Error(
          ResourceExhausted(std::string("an event for copies to the device: ") + cudaGetErrorString(error)));
    }
  }
  return ring;
}

// An event that is destroyed while it is awaited goes when it is done; the blocks stay with the queue.
UploadRing::~UploadRing() {
  for (Block& block : blocks_) {
    if (block.fetched == nullptr) continue;
    cudaEventSynchronize(block.fetched);
    cudaEventDestroy(block.fetched);
  }
}

cudaError_t UploadRing::Copy(void* destination, const void* source, size_t num_bytes, cudaStream_t stream) {
  auto* const to = static_cast<std::byte*>(destination);
  const auto* const from = static_cast<const std::byte*>(source);
  if (num_bytes <= kPieceBytes) return CopyPiece(to, from, num_bytes, stream);
  const size_t num_pieces = (num_bytes + kPieceBytes - 1) / kPieceBytes;
  std::atomic<size_t> next_piece = 0;
  std::atomic<cudaError_t> failed = cudaSuccess;
  // Pieces in order, to the next free thread: a disk likes that, and threads whose pages are far do not keep
  // the others.
  pool_.ParallelFor(pool_.num_threads(), 1, [&](int64_t, int64_t) {
    cudaError_t error = cudaSetDevice(device_);
    for (size_t i = next_piece++; error == cudaSuccess && i < num_pieces; i = next_piece++) {
      const size_t begin = i * kPieceBytes;
      error = CopyPiece(to + begin, from + begin, std::min(kPieceBytes, num_bytes - begin), stream);
    }
    if (error != cudaSuccess) failed = error;
  });
  return failed;
}

cudaError_t UploadRing::CopyPiece(std::byte* destination, const std::byte* source, size_t num_bytes,
                                  cudaStream_t stream) {
  Block& block = blocks_[next_block_++ % kNumBlocks];
  const std::lock_guard lock(block.mutex);
  if (const cudaError_t error = cudaEventSynchronize(block.fetched); error != cudaSuccess) return error;
  std::memcpy(block.memory.data(), source, num_bytes);
  const cudaError_t error =
      cudaMemcpyAsync(destination, block.memory.data(), num_bytes, cudaMemcpyHostToDevice, stream);
  return error != cudaSuccess ? error : cudaEventRecord(block.fetched, stream);
}

}  // namespace dsv4::backend::cuda
