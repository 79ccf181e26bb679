#include <algorithm>
#include <span>
#include <vector>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/lowering/lowering.h"
#include "backend/cuda/lowering/record/rows.h"

namespace dsv4::backend::cuda {
namespace {

struct Run {
  const std::byte* source;
  std::byte* destination;
  int64_t num_bytes;
};

// blockIdx.x names the run; blockIdx.y shares its bytes out.
__global__ void StoreRowsKernel(const DeviceArray<Run> runs) {
  BeginKernel();
  const Run run = runs[blockIdx.x];
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

constexpr int kThreads = 256;

// Blocks that share the longest run out.
int64_t SharesOf(int64_t longest) {
  constexpr int64_t kBytesPerBlock = 4 * kThreads * static_cast<int64_t>(sizeof(uint4));
  return std::clamp<int64_t>(CeilDiv(longest, kBytesPerBlock), 1, 1024);
}

void Launch(CudaContext& context, const DeviceArray<Run>& runs, int64_t shares) {
  if (runs.size == 0) return;
  context.Launch(StoreRowsKernel, dim3(static_cast<unsigned>(runs.size), static_cast<unsigned>(shares)),
                 kThreads, 0, runs);
}

}  // namespace

Status StoreRows(CudaContext& context, const ops::StoreRowsArgs& args) {
  if (args.pack.has_value()) return Unimplemented("op store_rows: this backend packs no rows");
  const int64_t row_bytes = args.source.shape[1] * ElementBytes(args.source.dtype);
  const RowsOperand rows = {.in = args.source.data,
                            .in_stride = args.source.shape[1],
                            .out = args.source.data,
                            .out_stride = args.source.shape[1],
                            .num_rows = args.source.shape[0],
                            .width = args.source.shape[1],
                            .in_is_bf16 = args.source.dtype == DType::kBF16,
                            .out_is_bf16 = args.source.dtype == DType::kBF16};
  const bool in_floats = args.source.dtype == DType::kBF16 || args.source.dtype == DType::kF32;
  if (in_floats && args.runs.size() <= kMaxJoinedRuns && context.lowering().ContinuesRows(rows)) {
    // Other steps' rows go elsewhere in the same memory, which is no operand of the launches around.
    std::vector<MemoryRange> ranges;
    for (const ops::RowRun& run : args.runs)
      ranges.push_back({run.destination, static_cast<size_t>(run.num_rows * row_bytes)});
    DSV4_ASSIGN_OR_RETURN_STATUS(const DeviceArray<StoredRun> staged,
                                 context.StageFrom<StoredRun>(args.runs, [](std::span<const ops::RowRun> all,
                                                                            std::vector<StoredRun>* stored) {
                                   for (const ops::RowRun& run : all) {
                                     stored->push_back({run.source_begin, run.source_begin + run.num_rows,
                                                        static_cast<std::byte*>(run.destination)});
                                   }
                                 }));
    return AddRowStep(context, rows, {.kind = RowStepKind::kStore, .runs = staged}, ranges);
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const DeviceArray<Run> runs,
      context.StageFrom<Run>(args.runs, [source = args.source.as<const std::byte>(), row_bytes](
                                            std::span<const ops::RowRun> all, std::vector<Run>* some) {
        for (const ops::RowRun& run : all) {
          const int64_t num_bytes = run.num_rows * row_bytes;
          if (num_bytes == 0) continue;
          some->push_back(
              {source + run.source_begin * row_bytes, static_cast<std::byte*>(run.destination), num_bytes});
        }
      }));
  Launch(context, runs, context.NumberFrom(args.runs, [row_bytes](std::span<const ops::RowRun> all) {
    int64_t longest = 0;
    for (const ops::RowRun& run : all) longest = std::max(longest, run.num_rows * row_bytes);
    return SharesOf(longest);
  }));
  return {};
}

Status GatherRows(CudaContext& context, const ops::GatherRowsArgs& args) {
  std::vector<Run> runs;
  int64_t longest = 0;
  ops::ForEachStretch(args, [&](const std::byte* from, std::byte* to, int64_t num_bytes) {
    if (num_bytes > 0) runs.push_back({from, to, num_bytes});
    longest = std::max(longest, num_bytes);
  });
  DSV4_ASSIGN_OR_RETURN_STATUS(const DeviceArray<Run> array, context.Stage(std::span<const Run>(runs)));
  Launch(context, array, SharesOf(longest));
  return {};
}

}  // namespace dsv4::backend::cuda
