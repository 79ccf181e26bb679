// DeviceQueue: one stream of one device with everything that can go wrong on it.
//
// CUDA reports late: a launch that reads wild memory fails the call that next waits. The queue therefore keeps a journal of
// the ops since it last waited, and every error that arrives asynchronously is told with it. A context that CUDA has given
// up ("sticky" errors) refuses further work with the first error's text.
//
// Kernels report wrong *data* (an id outside its table) through a fault record: the first fault wins, is read when the
// queue waits, and becomes the Status that the contract asks for.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "backend/cuda/fault.h"
#include "tensor/tensor.h"

namespace dsv4::backend::cuda {

// An op as the journal remembers it.
struct OpRecord {
  const char* name = "";
  std::array<Shape, 3> shapes;  // Those of rank 0 are left out.
  std::string ToString() const;
};

class DeviceQueue {
 public:
  static Result<std::shared_ptr<DeviceQueue>> Create(int device);
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  Device device() const { return {DeviceType::kCuda, index_}; }
  cudaStream_t stream() const { return stream_; }
  cudaMemPool_t pool() const { return pool_; }
  int num_processors() const { return num_processors_; }
  // Where kernels report wrong data; device memory.
  Fault* fault() const { return device_fault_; }

  // Ok, or what broke the device. Makes the device current for the calling thread.
  Status Enter();
  // The Status of one CUDA call, `what` naming it. Notes sticky errors.
  Status Check(cudaError_t error, std::string_view what);
  // Remembers an op for later errors.
  void Record(const OpRecord& record);
  // Waits for everything queued; then reports faults and errors.
  Status Wait(std::string_view what);

 private:
  DeviceQueue() = default;
  std::string Journal() const;
  Status TakeFault();

  int index_ = 0;
  int num_processors_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaMemPool_t pool_ = nullptr;
  Fault* device_fault_ = nullptr;
  Fault* host_fault_ = nullptr;  // Pinned.

  std::mutex wait_mutex_;     // One reader of host_fault_ at a time.
  mutable std::mutex mutex_;  // Guards what follows.
  Status broken_;
  static constexpr size_t kJournalLength = 8;
  std::array<OpRecord, kJournalLength> journal_;
  uint64_t num_recorded_ = 0;  // Since the last wait.
};

}  // namespace dsv4::backend::cuda
