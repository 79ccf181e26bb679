#include "bench/cuda/matrix_rate.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <vector>

#include "backend/cuda/kernels/hopper.cuh"

namespace dsv4::bench {
namespace {

namespace cuda = backend::cuda;

constexpr int kThreads = 256;
constexpr int kTokens = 128;
constexpr int kSteps = 4;  // Of 16 columns, over and over.
constexpr int kRounds = 20000;

// Bits of a bf16 between 1 and 2 in magnitude, of either sign: products of every mantissa, sums that stay small.
__device__ uint32_t RandomPair(uint32_t& state) {
  state = state * 1664525U + 1013904223U;
  return (state & 0x807F807FU) | 0x3F803F80U;
}

__global__ void __launch_bounds__(kThreads, 1) RateKernel(float* out) {
  __shared__ __align__(1024) uint32_t b[kTokens * 64 / 2];
  uint32_t state = blockIdx.x * kThreads + threadIdx.x + 1;
  for (int i = threadIdx.x; i < kTokens * 64 / 2; i += kThreads) b[i] = RandomPair(state);
  uint32_t a[kSteps][4];
  for (auto& step : a) {
    for (uint32_t& pair : step) pair = RandomPair(state);
  }
  cuda::PublishToMatrixSteps();
  __syncthreads();
  const uint64_t descriptor = cuda::MatrixDescriptor(cuda::SharedAddress(b));
  float sums[kTokens / 2] = {};
  for (int round = 0; round < kRounds; ++round) {
    cuda::FenceRegisters(sums);
    cuda::BeginMatrixSteps();
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      cuda::MatrixStep<kTokens>::Add(sums, a[step], descriptor + 2 * step, 1);
    cuda::CommitMatrixSteps();
    cuda::WaitForMatrixSteps<0>();
    cuda::FenceRegisters(sums);
  }
  float sum = 0;
  for (const float value : sums) sum += value;
  out[blockIdx.x * kThreads + threadIdx.x] = sum;
}

}  // namespace

Result<double> Bf16MatrixRate() {
  constexpr int kRuns = 5;
  int device = 0;
  int processors = 0;
  float* out = nullptr;
  cudaEvent_t events[kRuns + 1] = {};
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) error = cudaMalloc(&out, static_cast<size_t>(processors) * kThreads * sizeof(float));
  for (cudaEvent_t& event : events) {
    if (error == cudaSuccess) error = cudaEventCreate(&event);
  }
  std::vector<double> rates;
  for (int run = 0; run <= kRuns && error == cudaSuccess; ++run) {
    RateKernel<<<static_cast<unsigned>(processors), kThreads>>>(out);
    error = cudaGetLastError();
    if (error == cudaSuccess) error = cudaEventRecord(events[run]);
  }
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  for (int run = 0; run < kRuns && error == cudaSuccess; ++run) {
    float milliseconds = 0;
    error = cudaEventElapsedTime(&milliseconds, events[run], events[run + 1]);
    constexpr double kOperations = 2.0 * kThreads / 128 * 64 * kTokens * 16 * kSteps * kRounds;
    rates.push_back(kOperations * processors / (static_cast<double>(milliseconds) * 1e-3));
  }
  for (cudaEvent_t event : events) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  if (out != nullptr) cudaFree(out);
  if (error != cudaSuccess)
    return Error(Internal("the matrix unit's rate: " + std::string(cudaGetErrorString(error))));
  std::nth_element(rates.begin(), rates.begin() + kRuns / 2, rates.end());
  return rates[kRuns / 2];
}

}  // namespace dsv4::bench
