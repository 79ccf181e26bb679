// Kernel that asks for ranges of weights to be brought into the L2 cache.
#include <algorithm>

#include "backend/cuda/device/ptx/generation.cuh"
#include "backend/cuda/runtime/prefetch.h"

namespace dsv4::backend::cuda {
namespace {

// Few and small blocks, which find room beside any kernel's.
constexpr int kBlocks = 32;
constexpr int kThreads = 32;
constexpr size_t kPieceBytes = 4096;  // One request's.
constexpr uint32_t kLineBytes = 128;  // Bytes of one request of older devices.
constexpr int kMaxRanges = 16;        // A launch's.

struct Params {
  ReadRange ranges[kMaxRanges];  // Absent ranges have no bytes.
};

__global__ void __launch_bounds__(kThreads) PrefetchKernel(const __grid_constant__ Params p) {
  size_t first = blockIdx.x * size_t{kThreads} +
                 threadIdx.x;  // This thread's next piece, counted from the range's beginning.
  for (const ReadRange& range : p.ranges) {
    const size_t pieces = (range.num_bytes + kPieceBytes - 1) / kPieceBytes;
    for (; first < pieces; first += size_t{kBlocks} * kThreads) {
      const std::byte* const data = range.data + first * kPieceBytes;
      const auto bytes = static_cast<uint32_t>(min(kPieceBytes, range.num_bytes - first * kPieceBytes));
      if constexpr (kIsHopperOrLater) {
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(data), "r"(bytes) : "memory");
      } else {
        for (uint32_t i = 0; i < bytes; i += kLineBytes)
          asm volatile("prefetch.global.L2 [%0];" ::"l"(data + i) : "memory");
      }
    }
    first -= pieces;
  }
}

}  // namespace

cudaError_t LaunchPrefetch(std::span<const ReadRange> ranges, cudaStream_t stream) {
  while (!ranges.empty()) {
    Params params = {};
    const size_t count = std::min<size_t>(ranges.size(), kMaxRanges);
    std::copy_n(ranges.begin(), count, params.ranges);
    ranges = ranges.subspan(count);
    PrefetchKernel<<<kBlocks, kThreads, 0, stream>>>(params);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace dsv4::backend::cuda
