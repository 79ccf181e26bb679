// DeviceMemory: the Memory of a CUDA device, allocated in stream order from the queue's pool.
//
// Allocate, Copy and CopyFromHost return at once and are ordered on the queue's stream. It is the only one: a
// Stream argument must be null or that stream. CopyFromHost has read its source when it returns. Small
// sources travel with the launches around them, large ones through pinned blocks (upload_ring.h). CopyToHost
// waits, and so it reports late errors and faults.
#pragma once

#include <memory>
#include <mutex>

#include "backend/cuda/runtime/device_queue.h"
#include "backend/cuda/runtime/upload_ring.h"

namespace dsv4::backend::cuda {

class DeviceMemory final : public Memory {
 public:
  explicit DeviceMemory(std::shared_ptr<DeviceQueue> queue) : queue_(std::move(queue)) {}

  Device device() const override { return queue_->device(); }
  DeviceQueue& queue() { return *queue_; }
  // ResourceExhausted says how much was asked for and how much is free.
  Result<Buffer> Allocate(size_t num_bytes) override;
  Status Copy(void* destination, const void* source, size_t num_bytes, Stream stream) override;
  Status CopyFromHost(void* destination, const void* source, size_t num_bytes, Stream stream) override;
  Status CopyToHost(void* destination, const void* source, size_t num_bytes, Stream stream) override;
  bool asynchronous() const override { return queue_->asynchronous(); }
  Result<std::unique_ptr<PendingCopy>> StartCopyToHost(void* destination, const void* source,
                                                       size_t num_bytes, Stream stream) override;
  Result<Buffer> AllocateOnHost(size_t num_bytes) override { return queue_->AllocateOnHost(num_bytes); }

 private:
  void CheckStream(Stream stream) const;
  Result<UploadRing*> Ring();

  const std::shared_ptr<DeviceQueue> queue_;
  std::mutex ring_mutex_;
  std::unique_ptr<UploadRing> ring_;  // Made when it is wanted first.
};

}  // namespace dsv4::backend::cuda
