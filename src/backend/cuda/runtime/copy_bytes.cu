// Kernels that copy small arrays between pinned host memory and the device, as launches of a list.
#include <algorithm>

#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/runtime/copy_bytes.h"
#include "backend/cuda/runtime/device_queue.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void CopyBytesKernel(const uint8_t* source, uint8_t* destination, int64_t num_bytes) {
  BeginKernel();
  for (int64_t i = threadIdx.x; i < num_bytes; i += kThreads) destination[i] = source[i];
}

// The host's memory is far away: a megabyte is asked for before any of it is waited for. A step of 64 long
// sequences brings two, of page tables.
constexpr int kUploadBlocks = 16;
constexpr int kUploadThreads = 512;
constexpr int kUploadAtOnce = 8;

__global__ void __launch_bounds__(kUploadThreads)
    CopyBytesUploadKernel(const uint4* from, uint4* to, int64_t count) {
  BeginKernel();
  constexpr int64_t kStep = kUploadBlocks * kUploadThreads;
  for (int64_t first = blockIdx.x * int64_t{kUploadThreads} + threadIdx.x; first < count;
       first += kUploadAtOnce * kStep) {
    uint4 words[kUploadAtOnce];
#pragma unroll
    for (int i = 0; i < kUploadAtOnce; ++i)
      if (first + i * kStep < count) words[i] = __ldcv(from + first + i * kStep);
#pragma unroll
    for (int i = 0; i < kUploadAtOnce; ++i)
      if (first + i * kStep < count) to[first + i * kStep] = words[i];
  }
}

__global__ void __launch_bounds__(kThreads)
    CopyBytesToHostKernel(const uint8_t* source, uint8_t* destination, int64_t num_bytes, const Fault* fault,
                          Fault* host_fault) {
  BeginKernel();
  const int64_t thread = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  const int64_t num_threads = gridDim.x * int64_t{kThreads};
  int64_t done = 0;
  if ((reinterpret_cast<uintptr_t>(source) | reinterpret_cast<uintptr_t>(destination)) % sizeof(uint4) == 0) {
    const int64_t count = num_bytes / static_cast<int64_t>(sizeof(uint4));
    const auto* const from = reinterpret_cast<const uint4*>(source);
    auto* const to = reinterpret_cast<uint4*>(destination);
#pragma unroll 4
    for (int64_t i = thread; i < count; i += num_threads) to[i] = from[i];
    done = count * static_cast<int64_t>(sizeof(uint4));
  }
  for (int64_t i = done + thread; i < num_bytes; i += num_threads) destination[i] = source[i];
  if (thread == 0) *host_fault = *fault;
}

}  // namespace

void BeginUpload(LaunchList& list) {
  list.BeginLaunch(reinterpret_cast<const void*>(CopyBytesUploadKernel), kUploadBlocks, kUploadThreads, 0,
                   false);
  list.AddArgument(static_cast<const uint4*>(nullptr));
  list.AddArgument(static_cast<uint4*>(nullptr));
  list.AddArgument(int64_t{0});
}

void SetUpload(LaunchList& list, const Staging::Bytes& staged) {
  list.SetArgument(0, staged.host);
  list.SetArgument(1, staged.device);
  list.SetArgument(2, static_cast<int64_t>(staged.num_bytes / sizeof(uint4)));
}

void LaunchCopyToHost(DeviceQueue& queue, void* destination, const void* source, size_t num_bytes,
                      Fault* host_fault) {
  constexpr size_t kBytesPerBlock = 4 * kThreads * sizeof(uint4);
  const auto blocks =
      static_cast<unsigned>(std::clamp<size_t>((num_bytes + kBytesPerBlock - 1) / kBytesPerBlock, 1, 64));
  queue.Launch(CopyBytesToHostKernel, blocks, kThreads, 0, static_cast<const uint8_t*>(source),
               static_cast<uint8_t*>(destination), static_cast<int64_t>(num_bytes),
               static_cast<const Fault*>(queue.fault()), host_fault);
}

void LaunchCopyBytes(DeviceQueue& queue, void* destination, const void* source, size_t num_bytes) {
  if (num_bytes == 0) return;
  queue.Launch(CopyBytesKernel, 1, kThreads, 0, static_cast<const uint8_t*>(source),
               static_cast<uint8_t*>(destination), static_cast<int64_t>(num_bytes));
}

}  // namespace dsv4::backend::cuda
