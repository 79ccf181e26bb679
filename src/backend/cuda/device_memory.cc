#include "backend/cuda/device_memory.h"

#include <fmt/format.h>

#include "base/check.h"

namespace dsv4::backend::cuda {

Result<Buffer> DeviceMemory::Allocate(size_t num_bytes) {
  DSV4_TRY(queue_->Enter());
  void* data = nullptr;
  const size_t rounded = num_bytes == 0 ? 1 : num_bytes;
  const cudaError_t error = cudaMallocFromPoolAsync(&data, rounded, queue_->pool(), queue_->stream());
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    return Error(
        ResourceExhausted(fmt::format("CUDA device {}: could not allocate {} bytes, {} of {} are free",
                                      queue_->device().index, num_bytes, free_bytes, total_bytes)));
  }
  DSV4_TRY(queue_->Check(error, "cudaMallocFromPoolAsync"));
  // Freed in the order of the stream, after what was queued before; the queue outlives its last buffer.
  Buffer buffer(std::shared_ptr<void>(data, [queue = queue_](void* p) { cudaFreeAsync(p, queue->stream()); }),
                num_bytes, device());
  DSV4_TRY(queue_->Check(cudaMemsetAsync(data, 0, rounded, queue_->stream()), "cudaMemsetAsync"));
  return buffer;
}

Status DeviceMemory::Transfer(void* destination, const void* source, size_t num_bytes, cudaMemcpyKind kind,
                              Stream stream, std::string_view what) {
  DSV4_CHECK(stream == nullptr || stream == queue_->stream()) << "a stream of another queue";
  DSV4_RETURN_IF_ERROR(queue_->Enter());
  if (num_bytes == 0) return {};
  return queue_->Check(cudaMemcpyAsync(destination, source, num_bytes, kind, queue_->stream()), what);
}

Status DeviceMemory::Copy(void* destination, const void* source, size_t num_bytes, Stream stream) {
  return Transfer(destination, source, num_bytes, cudaMemcpyDeviceToDevice, stream, "copy on the device");
}

Status DeviceMemory::CopyFromHost(void* destination, const void* source, size_t num_bytes, Stream stream) {
  return Transfer(destination, source, num_bytes, cudaMemcpyHostToDevice, stream, "copy to the device");
}

Status DeviceMemory::CopyToHost(void* destination, const void* source, size_t num_bytes, Stream stream) {
  DSV4_RETURN_IF_ERROR(
      Transfer(destination, source, num_bytes, cudaMemcpyDeviceToHost, stream, "copy to the host"));
  return queue_->Wait("copy to the host");
}

}  // namespace dsv4::backend::cuda
