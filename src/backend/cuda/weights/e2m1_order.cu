// Kernel that puts NVFP4 codes of a weight into the order in which they widen fastest.
#include <algorithm>

#include "backend/cuda/weights/e2m1_order.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr size_t kMostBlocks = 2048;

__global__ void E2m1OrderKernel(ulonglong2* data, size_t count) {
  const size_t stride = size_t{gridDim.x} * kThreads;
  for (size_t i = blockIdx.x * size_t{kThreads} + threadIdx.x; i < count; i += stride) {
    const ulonglong2 stored = data[i];
    data[i] = make_ulonglong2(InE2m1Order(stored.x), InE2m1Order(stored.y));
  }
}

}  // namespace

cudaError_t LaunchE2m1Order(cudaStream_t stream, void* data, size_t num_bytes) {
  const size_t count = num_bytes / sizeof(ulonglong2);
  if (count == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, kMostBlocks));
  E2m1OrderKernel<<<blocks, kThreads, 0, stream>>>(static_cast<ulonglong2*>(data), count);
  return cudaGetLastError();
}

}  // namespace dsv4::backend::cuda
