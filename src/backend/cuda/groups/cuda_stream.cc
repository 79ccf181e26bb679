// Device stream of a CUDA rank's group: row copies, sums of parts and marks on the queue's stream.
#include "backend/cuda/groups/cuda_stream.h"

#include <algorithm>
#include <bit>

#include "backend/cuda/collectives/sum_parts.h"

namespace dsv4::backend::cuda {
namespace {

Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return Internal(std::string(what) + ": " + cudaGetErrorString(error));
}

}  // namespace

Result<std::unique_ptr<CudaStream>> CudaStream::Create(std::shared_ptr<DeviceQueue> queue) {
  std::unique_ptr<CudaStream> made(new CudaStream(std::move(queue)));
  DSV4_TRY(made->Queue("memory of a group", [&](void*) {
    return ToStatus(
        cudaHostAlloc(reinterpret_cast<void**>(&made->reached_), sizeof(uint64_t), cudaHostAllocMapped),
        "cudaHostAlloc");
  }));
  *made->reached_ = 0;
  return made;
}

// Queued work may still write the word.
CudaStream::~CudaStream() {
  (void)Queue("the end of a group", [&](void* stream) {
    cudaStreamSynchronize(static_cast<cudaStream_t>(stream));
    if (reached_ != nullptr) cudaFreeHost(reached_);
    return Status();
  });
  if (scratch_ != nullptr) queue_->Free(scratch_);
}

Status CudaStream::Queue(const char* what, const std::function<Status(void* stream)>& queue) {
  return queue_->OnStream(what, [&](cudaStream_t stream) { return queue(stream); });
}

Result<std::byte*> CudaStream::Scratch(size_t num_bytes) {
  if (num_bytes > scratch_bytes_) {
    // In the order of the stream: what still reads the old memory is queued before its end.
    if (scratch_ != nullptr) queue_->Free(scratch_);
    scratch_ = nullptr;
    scratch_bytes_ = 0;
    const size_t rounded = std::bit_ceil(std::max<size_t>(num_bytes, size_t{1} << 20));
    DSV4_ASSIGN_OR_RETURN(scratch_, queue_->Allocate(rounded));
    scratch_bytes_ = rounded;
  }
  return static_cast<std::byte*>(scratch_);
}

Status CudaStream::CopyRows(std::byte* to, int64_t to_stride, const std::byte* from, int64_t from_stride,
                            int64_t row_bytes, int64_t num_rows) {
  if (row_bytes == 0 || num_rows == 0) return {};
  const auto width = static_cast<size_t>(row_bytes);
  // A pitch is at least the width, also of the only row.
  return ToStatus(
      cudaMemcpy2DAsync(to, std::max(static_cast<size_t>(to_stride), width), from,
                        std::max(static_cast<size_t>(from_stride), width), width,
                        static_cast<size_t>(num_rows), cudaMemcpyDeviceToDevice, queue_->stream()),
      "cudaMemcpy2DAsync");
}

Status CudaStream::SumParts(const float* parts, int num_parts, int64_t count, float* sum) {
  return ToStatus(LaunchSumParts(queue_->stream(), parts, num_parts, count, sum), "sum of the ranks' parts");
}

Result<uint64_t> CudaStream::Mark() {
  DSV4_TRY(ToStatus(LaunchMark(queue_->stream(), reached_, ++marked_), "mark behind an exchange"));
  return marked_;
}

uint64_t CudaStream::Reached() const { return __atomic_load_n(reached_, __ATOMIC_ACQUIRE); }

}  // namespace dsv4::backend::cuda
