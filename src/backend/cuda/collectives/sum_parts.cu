// Kernels that add gathered parts in rank order, and that mark how far a stream has come.
#include <algorithm>

#include "backend/cuda/collectives/sum_parts.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void SumPartsKernel(const float* parts, int num_parts, int64_t count, float* sum) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count; i += stride) {
    float total = parts[i];
    for (int part = 1; part < num_parts; ++part) total += parts[part * count + i];
    sum[i] = total;
  }
}

__global__ void SumPartsMarkKernel(volatile uint64_t* word, uint64_t number) {
  *word = number;
  __threadfence_system();
}

}  // namespace

cudaError_t LaunchSumParts(cudaStream_t stream, const float* parts, int num_parts, int64_t count,
                           float* sum) {
  if (count == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((count + kThreads - 1) / kThreads, 1024));
  SumPartsKernel<<<blocks, kThreads, 0, stream>>>(parts, num_parts, count, sum);
  return cudaGetLastError();
}

cudaError_t LaunchMark(cudaStream_t stream, uint64_t* word, uint64_t number) {
  SumPartsMarkKernel<<<1, 1, 0, stream>>>(word, number);
  return cudaGetLastError();
}

}  // namespace dsv4::backend::cuda
