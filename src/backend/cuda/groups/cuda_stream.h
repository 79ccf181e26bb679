// CudaStream: the CUDA backend's stream as a group on device memory wants it (comm/device_stream.h).
#pragma once

#include <memory>

#include "backend/cuda/runtime/device_queue.h"
#include "comm/device_stream.h"

namespace dsv4::backend::cuda {

class CudaStream final : public comm::DeviceStream {
 public:
  static Result<std::unique_ptr<CudaStream>> Create(std::shared_ptr<DeviceQueue> queue);
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  ~CudaStream() override;

  Status Queue(const char* what, const std::function<Status(void* stream)>& queue) override;
  Result<std::byte*> Scratch(size_t num_bytes) override;
  Status CopyRows(std::byte* to, int64_t to_stride, const std::byte* from, int64_t from_stride,
                  int64_t row_bytes, int64_t num_rows) override;
  Status SumParts(const float* parts, int num_parts, int64_t count, float* sum) override;
  Result<uint64_t> Mark() override;
  uint64_t Reached() const override;

 private:
  explicit CudaStream(std::shared_ptr<DeviceQueue> queue) : queue_(std::move(queue)) {}

  std::shared_ptr<DeviceQueue> queue_;
  uint64_t marked_ = 0;
  uint64_t* reached_ = nullptr;  // Mapped host memory.
  void* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
};

}  // namespace dsv4::backend::cuda
