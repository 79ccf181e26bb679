// Memory of a CUDA device from the stream-ordered pool, zeroed, with copies to and from the host.
#include "backend/cuda/runtime/device_memory.h"

#include "base/check.h"
#include "base/thread_count.h"

namespace dsv4::backend::cuda {
namespace {

// More than that do not fill the device's link faster.
constexpr int kMaxUploadThreads = 8;

}  // namespace

void DeviceMemory::CheckStream(Stream stream) const {
  DSV4_CHECK(stream == nullptr || stream == queue_->stream()) << "a stream of another queue";
}

Result<Buffer> DeviceMemory::Allocate(size_t num_bytes) {
  DSV4_ASSIGN_OR_RETURN(void* const data, queue_->Allocate(num_bytes));
  // Freed in the order of the stream, after what was queued before; the queue outlives its last buffer.
  return Buffer(std::shared_ptr<void>(data, [queue = queue_](void* p) { queue->Free(p); }), num_bytes,
                device());
}

Status DeviceMemory::Copy(void* destination, const void* source, size_t num_bytes, Stream stream) {
  CheckStream(stream);
  return queue_->CopyOnDevice(destination, source, num_bytes);
}

Status DeviceMemory::CopyFromHost(void* destination, const void* source, size_t num_bytes, Stream stream) {
  CheckStream(stream);
  if (num_bytes <= DeviceQueue::kMaxStagedCopyBytes) {
    return queue_->CopyFromHost(destination, source, num_bytes);
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(UploadRing* const ring, Ring());
  return queue_->CallOnStream(
      "copy to the device", [&](cudaStream_t on) { return ring->Copy(destination, source, num_bytes, on); });
}

Result<UploadRing*> DeviceMemory::Ring() {
  const std::lock_guard lock(ring_mutex_);
  if (ring_ == nullptr) {
    DSV4_ASSIGN_OR_RETURN(ring_, UploadRing::Create(*queue_, CoresUpTo(kMaxUploadThreads)));
  }
  return ring_.get();
}

Status DeviceMemory::CopyToHost(void* destination, const void* source, size_t num_bytes, Stream stream) {
  CheckStream(stream);
  return queue_->CopyToHost(destination, source, num_bytes);
}

Result<std::unique_ptr<PendingCopy>> DeviceMemory::StartCopyToHost(void* destination, const void* source,
                                                                   size_t num_bytes, Stream stream) {
  CheckStream(stream);
  return queue_->StartCopyToHost(destination, source, num_bytes);
}

}  // namespace dsv4::backend::cuda
