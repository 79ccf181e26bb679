#include <algorithm>
#include <span>
#include <vector>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/rows/row_registers.cuh"
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

// Rows [begin, end) of `source`, whose codes `destination` gets.
struct PackedRun {
  int64_t begin;
  int64_t end;
  unsigned char* destination;
};

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
      in_block.Pack(format, row, fault);
      in_block.WritePacked(format, to);
      __syncthreads();  // What is shared in Pack has been read.
    } else {
      PackRowBy(
          static_cast<int>(threadIdx.x), kNarrowRowThreads, format, width,
          [&](int i) { return ToFloat(reinterpret_cast<const Bf16*>(from)[i]); }, to, row, fault);
    }
  }
}

Status StorePacked(CudaContext& context, const ops::StoreRowsArgs& args) {
  const CacheFormat& format = *args.pack;
  const int64_t width = args.source.shape[1];
  const bool in_registers =
      width <= kMaxRegisterRow && format.scale == CacheScale::kE8m0 &&
      (format.code == CacheCode::kE4m3 ? format.group == kRegisterGroup
                                       : format.group == kRegisterE2m1Group && format.num_coded == width);
  DSV4_ASSIGN_OR_RETURN_STATUS(const DeviceArray<PackedRun> runs,
                               context.StageFrom<PackedRun>(args.runs, [](std::span<const ops::RowRun> all,
                                                                          std::vector<PackedRun>* some) {
                                 for (const ops::RowRun& run : all) {
                                   if (run.num_rows == 0) continue;
                                   some->push_back({run.source_begin, run.source_begin + run.num_rows,
                                                    static_cast<unsigned char*>(run.destination)});
                                 }
                               }));
  const int64_t shares = context.NumberFrom(args.runs, [](std::span<const ops::RowRun> all) {
    constexpr int64_t kMaxShares = 1024;
    int64_t longest = 1;
    for (const ops::RowRun& run : all) longest = std::max(longest, run.num_rows);
    return std::min(longest, kMaxShares);
  });
  if (runs.size == 0) return {};
  const dim3 grid(static_cast<unsigned>(runs.size), static_cast<unsigned>(shares));
  context.Launch(StoreRowsPackedKernel, grid, kNarrowRowThreads, 0, runs, args.source.as<const uint16_t>(),
                 static_cast<int>(width), format, in_registers, context.fault());
  return {};
}

}  // namespace

Status StoreRows(CudaContext& context, const ops::StoreRowsArgs& args) {
  if (args.pack.has_value() && args.source.dtype != DType::kBF16)
    return Unimplemented("op store_rows: this backend packs rows of bf16");
  const int64_t row_bytes = args.StoredBytes();
  const RowsOperand rows = {.in = args.source.data,
                            .in_stride = args.source.shape[1],
                            .out = args.source.data,
                            .out_stride = args.source.shape[1],
                            .num_rows = args.source.shape[0],
                            .width = args.source.shape[1],
                            .in_is_bf16 = args.source.dtype == DType::kBF16,
                            .out_is_bf16 = args.source.dtype == DType::kBF16};
  const bool in_floats = args.source.dtype == DType::kBF16 || args.source.dtype == DType::kF32;
  const bool has_step = !args.pack.has_value() || args.pack->scale == CacheScale::kE8m0;
  if (in_floats && has_step && args.runs.size() <= kMaxJoinedRuns && context.lowering().ContinuesRows(rows)) {
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
    RowStep step = {.kind = RowStepKind::kStore, .runs = staged};
    if (args.pack.has_value()) {
      step.code = args.pack->code;
      step.num_columns = static_cast<int>(args.pack->num_coded);
      step.group = static_cast<int>(args.pack->group);
    }
    return AddRowStep(context, rows, step, ranges);
  }
  if (args.pack.has_value()) return StorePacked(context, args);
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
