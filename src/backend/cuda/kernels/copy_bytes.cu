#include "backend/cuda/device_queue.h"
#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/copy_bytes.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void CopyBytesKernel(const uint8_t* source, uint8_t* destination, int64_t num_bytes) {
  BeginKernel();
  BeginKernel();
  for (int64_t i = threadIdx.x; i < num_bytes; i += kThreads) destination[i] = source[i];
}

}  // namespace

void LaunchCopyBytes(DeviceQueue& queue, void* destination, const void* source, size_t num_bytes) {
  if (num_bytes == 0) return;
  queue.Launch(CopyBytesKernel, 1, kThreads, 0, static_cast<const uint8_t*>(source),
               static_cast<uint8_t*>(destination), static_cast<int64_t>(num_bytes));
}

}  // namespace dsv4::backend::cuda
