// CudaContext: what the ops of this backend use beside their arguments: the queue, scratch memory, and a way to bring small
// host arrays (sequence descriptors, page tables) to kernels without waiting.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/device_memory.h"
#include "backend/cuda/kernels/arg_array.h"
#include "ops/op_context.h"
#include "tensor/arena.h"

namespace dsv4::backend::cuda {

class CudaContext final : public ops::OpContext {
 public:
  CudaContext(std::shared_ptr<DeviceQueue> queue, bool synchronous)
      : queue_(std::move(queue)), synchronous_(synchronous), memory_(queue_), scratch_(memory_) {}
  ~CudaContext() override;

  Memory& memory() override { return memory_; }
  ThreadPool& threads() override { return threads_; }
  Stream stream() override { return queue_->stream(); }

  DeviceQueue& queue() { return *queue_; }
  cudaStream_t cuda_stream() const { return queue_->stream(); }
  Fault* fault() const { return queue_->fault(); }

  // Runs `body`, which queues an op's work, between the checks that every op needs. `operand` is any operand of the op.
  template <typename Body>
  Status RunOp(const OpRecord& record, const TensorView& operand, Body&& body) {
    DSV4_RETURN_IF_ERROR(Begin(record, operand));
    const Arena::Scope scope(scratch_);
    DSV4_RETURN_IF_ERROR(body());
    return End(record);
  }

  // Memory for the op that runs now; contents unspecified.
  Result<void*> Scratch(size_t num_bytes);
  template <typename T>
  Result<T*> Scratch(int64_t count) {
    DSV4_ASSIGN_OR_RETURN(void* data, Scratch(static_cast<size_t>(count) * sizeof(T)));
    return static_cast<T*>(data);
  }

  // Copies `num_bytes` of host memory to the device for ops queued from now on; the source is free at return, and the
  // copy stays for the op that runs now.
  Result<const void*> Stage(const void* source, size_t num_bytes);
  // The same for kernel arguments: a few elements travel inside the argument itself.
  template <typename T, int kInline>
  Result<ArgArray<T, kInline>> StageArray(std::span<const T> values) {
    ArgArray<T, kInline> array;
    array.size = static_cast<int64_t>(values.size());
    if (values.size() <= kInline) {
      std::copy(values.begin(), values.end(), array.few);
    } else {
      DSV4_ASSIGN_OR_RETURN(const void* data, Stage(values.data(), values.size_bytes()));
      array.many = static_cast<const T*>(data);
    }
    return array;
  }

  // A device copy of a host table that rarely changes (the pointers of a layer's experts). `key` names its place; the
  // bytes are compared, so a key that comes to mean something else costs an upload, never a wrong table.
  Result<const void*> CachedTable(const void* key, std::span<const std::byte> bytes);

 private:
  // Host memory that is read by copies in flight: two halves, each reused once its copies are done.
  struct StagingHalf {
    std::byte* host = nullptr;  // Pinned.
    Buffer device;
    size_t used = 0;
    cudaEvent_t done = nullptr;
  };
  struct Table {
    std::vector<std::byte> bytes;
    Buffer device;
  };

  Status Begin(const OpRecord& record, const TensorView& operand);
  Status End(const OpRecord& record);
  Status SwitchStagingHalf(size_t num_bytes);
  void FreeStaging();

  std::shared_ptr<DeviceQueue> queue_;
  bool synchronous_;
  DeviceMemory memory_;
  ThreadPool threads_{1};
  Arena scratch_;
  StagingHalf staging_[2];
  int staging_half_ = 0;
  size_t staging_bytes_ = 0;  // Of a half.
  std::map<const void*, Table> tables_;
};

}  // namespace dsv4::backend::cuda
