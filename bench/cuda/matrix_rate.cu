// Rate of a loop of nothing but wgmma of bf16 or FP8, the bound of prefills.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <vector>

#include "backend/cuda/device/ptx/wgmma_tma.cuh"
#include "bench/cuda/matrix_rate.h"

namespace dsv4::bench {
namespace {

namespace cuda = backend::cuda;

#define DSV4_FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define DSV4_SIXTEEN(i) DSV4_FOUR(i), DSV4_FOUR(i + 4), DSV4_FOUR(i + 8), DSV4_FOUR(i + 12)

constexpr int kThreads = 256;
constexpr int kTokens = 128;
constexpr int kSteps = 4;  // Over and over, each of 32 bytes of a row: 16 columns of bf16, 32 of e4m3.
constexpr int kRounds = 20000;

// A register's worth of numbers between 1 and 2 in magnitude, of either sign: products of every mantissa,
// sums that stay small. Add: a step, with A in registers.
struct Bf16Step {
  static constexpr int kColumns = 16;
  static __device__ uint32_t Random(uint32_t bits) { return (bits & 0x807F807FU) | 0x3F803F80U; }
  static __device__ void Add(float (&d)[kTokens / 2], const uint32_t (&a)[4], uint64_t b) {
    cuda::MatrixStep<kTokens>::Add(d, a, b, 1);
  }
};
struct E4m3Step {
  static constexpr int kColumns = 32;
  static __device__ uint32_t Random(uint32_t bits) { return (bits & 0x87878787U) | 0x38383838U; }
  static __device__ void Add(float (&d)[kTokens / 2], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, 1, 1, 1;"
        : DSV4_SIXTEEN(0), DSV4_SIXTEEN(16), DSV4_SIXTEEN(32), DSV4_SIXTEEN(48)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};

__device__ uint32_t Next(uint32_t& state) { return state = state * 1664525U + 1013904223U; }

template <typename Step>
__global__ void __launch_bounds__(kThreads, 1) RateKernel(float* out) {
  __shared__ __align__(1024) uint32_t b[kTokens * 64 / 2];
  uint32_t state = blockIdx.x * kThreads + threadIdx.x + 1;
  for (int i = threadIdx.x; i < kTokens * 64 / 2; i += kThreads) b[i] = Step::Random(Next(state));
  uint32_t a[kSteps][4];
  for (auto& step : a) {
    for (uint32_t& pair : step) pair = Step::Random(Next(state));
  }
  cuda::PublishToMatrixSteps();
  __syncthreads();
  const uint64_t descriptor = cuda::MatrixDescriptor(cuda::SharedAddress(b));
  float sums[kTokens / 2] = {};
  for (int round = 0; round < kRounds; ++round) {
    cuda::FenceRegisters(sums);
    cuda::BeginMatrixSteps();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) Step::Add(sums, a[step], descriptor + 2 * step);
    cuda::CommitMatrixSteps();
    cuda::WaitForMatrixSteps<0>();
    cuda::FenceRegisters(sums);
  }
  float sum = 0;
  for (const float value : sums) sum += value;
  out[blockIdx.x * kThreads + threadIdx.x] = sum;
}

template <typename Step>
Result<double> MatrixRate() {
  constexpr int kRuns = 5;
  int device = 0;
  int SMs = 0;
  float* out = nullptr;
  cudaEvent_t events[kRuns + 1] = {};
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&SMs, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) error = cudaMalloc(&out, static_cast<size_t>(SMs) * kThreads * sizeof(float));
  for (cudaEvent_t& event : events) {
    if (error == cudaSuccess) error = cudaEventCreate(&event);
  }
  std::vector<double> rates;
  for (int run = 0; run <= kRuns && error == cudaSuccess; ++run) {
    RateKernel<Step><<<static_cast<unsigned>(SMs), kThreads>>>(out);
    error = cudaGetLastError();
    if (error == cudaSuccess) error = cudaEventRecord(events[run]);
  }
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  for (int run = 0; run < kRuns && error == cudaSuccess; ++run) {
    float milliseconds = 0;
    error = cudaEventElapsedTime(&milliseconds, events[run], events[run + 1]);
    constexpr double kOperations = 2.0 * kThreads / 128 * 64 * kTokens * Step::kColumns * kSteps * kRounds;
    rates.push_back(kOperations * SMs / (static_cast<double>(milliseconds) * 1e-3));
  }
  for (cudaEvent_t event : events) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  if (out != nullptr) cudaFree(out);
  if (error != cudaSuccess)
    return Error(Internal("the tensor cores' rate: " + std::string(cudaGetErrorString(error))));
  std::nth_element(rates.begin(), rates.begin() + kRuns / 2, rates.end());
  return rates[kRuns / 2];
}

}  // namespace

Result<double> Bf16MatrixRate() { return MatrixRate<Bf16Step>(); }
Result<double> E4m3MatrixRate() { return MatrixRate<E4m3Step>(); }

}  // namespace dsv4::bench
