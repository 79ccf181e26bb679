// store_rows and gather_rows: runs of bytes copied, and rows packed. Stores that share a launch are steps on
// rows (row_tracks.cu).
#include <algorithm>

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/rows/row_registers.cuh"
#include "backend/cuda/kernels/rows/store_rows.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

// blockIdx.x names the run; blockIdx.y shares its bytes out.
__global__ void StoreRowsKernel(const DeviceArray<ByteRun> runs) {
  BeginKernel();
  const ByteRun run = runs[blockIdx.x];
  const int64_t thread = blockIdx.y * int64_t{blockDim.x} + threadIdx.x;
  const int64_t num_threads = gridDim.y * int64_t{blockDim.x};
  const auto addresses =
      reinterpret_cast<uintptr_t>(run.source) | reinterpret_cast<uintptr_t>(run.destination);
  int64_t done = 0;
  if (addresses % sizeof(uint4) == 0) {
    const int64_t count = run.num_bytes / static_cast<int64_t>(sizeof(uint4));
    const auto* from = reinterpret_cast<const uint4*>(run.source);
    auto* to = reinterpret_cast<uint4*>(run.destination);
    for (int64_t i = thread; i < count; i += num_threads) to[i] = from[i];
    done = count * static_cast<int64_t>(sizeof(uint4));
  }
  for (int64_t i = done + thread; i < run.num_bytes; i += num_threads) run.destination[i] = run.source[i];
}

// Grid: runs, shares of their rows. A block a row at a time; in_registers: RegisterRow packs such rows.
__global__ void __launch_bounds__(kNarrowRowThreads)
    StoreRowsPackedKernel(const DeviceArray<PackedRun> runs, const uint16_t* source, const int width,
                          const CacheFormat format, const bool in_registers, Fault* fault) {
  BeginKernel();
  const PackedRun run = runs[blockIdx.x];
  const int64_t row_bytes = format.RowBytes(width);
  for (int64_t row = run.begin + blockIdx.y; row < run.end; row += gridDim.y) {
    const uint16_t* const from = source + row * width;
    unsigned char* const to = run.destination + (row - run.begin) * row_bytes;
    if (in_registers) {
      RegisterRow in_block(width);
      in_block.Load(from);
      const RegisterRow::Places places =
          in_block.PlacesOf(format.code, static_cast<int>(format.num_coded), static_cast<int>(format.group));
      in_block.Pack(places, row, fault);
      in_block.WritePacked(places, to);
      __syncthreads();  // Shared values of Pack have been read.
    } else {
      PackRowBy(
          static_cast<int>(threadIdx.x), kNarrowRowThreads, format, width,
          [&](int i) { return ToFloat(reinterpret_cast<const Bf16*>(from)[i]); }, to, row, fault);
    }
  }
}

constexpr int kThreads = 256;

}  // namespace

int64_t SharesOfRun(int64_t longest) {
  constexpr int64_t kBytesPerBlock = 4 * kThreads * static_cast<int64_t>(sizeof(uint4));
  return std::clamp<int64_t>(CeilDiv(longest, kBytesPerBlock), 1, 1024);
}

void LaunchStoreRows(LaunchContext& context, const DeviceArray<ByteRun>& runs, int64_t shares) {
  if (runs.size == 0) return;
  context.Launch(StoreRowsKernel, dim3(static_cast<unsigned>(runs.size), static_cast<unsigned>(shares)),
                 kThreads, 0, runs);
}

void LaunchStorePacked(LaunchContext& context, const DeviceArray<PackedRun>& runs, int64_t shares,
                       const TensorView& source, const CacheFormat& format, bool in_registers) {
  if (runs.size == 0) return;
  const dim3 grid(static_cast<unsigned>(runs.size), static_cast<unsigned>(shares));
  context.Launch(StoreRowsPackedKernel, grid, kNarrowRowThreads, 0, runs, source.as<const uint16_t>(),
                 static_cast<int>(source.shape[1]), format, in_registers, context.fault());
}

}  // namespace dsv4::backend::cuda
