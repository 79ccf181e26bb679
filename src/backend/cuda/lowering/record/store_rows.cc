// The op store_rows: a step of the launch on rows in front of it, else a launch that packs rows or copies
// them.
#include "backend/cuda/kernels/rows/store_rows.h"

#include <algorithm>
#include <span>
#include <vector>

#include "backend/cuda/lowering/launch/lowering.h"
#include "backend/cuda/lowering/record/rows.h"
#include "backend/cuda/lowering/select/rows.h"
#include "backend/cuda/runtime/cuda_ops.h"

namespace dsv4::backend::cuda {
namespace {

Status AddStore(CudaContext& context, const ops::StoreRowsArgs& args, const RowsOperand& rows) {
  // Other steps' rows go elsewhere in the same memory, which is no operand of the launches around.
  std::vector<MemoryRange> ranges;
  for (const ops::RowRun& run : args.runs)
    ranges.push_back({run.destination, static_cast<size_t>(run.num_rows * args.StoredBytes())});
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

Status Pack(CudaContext& context, const ops::StoreRowsArgs& args) {
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
  LaunchStorePacked(context, runs, shares, args.source, *args.pack,
                    PacksInRegisters(*args.pack, args.source.shape[1]));
  return {};
}

Status Copy(CudaContext& context, const ops::StoreRowsArgs& args) {
  const int64_t row_bytes = args.StoredBytes();
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const DeviceArray<ByteRun> runs,
      context.StageFrom<ByteRun>(
          args.runs, [source = args.source.as<const std::byte>(), row_bytes](std::span<const ops::RowRun> all,
                                                                             std::vector<ByteRun>* some) {
            for (const ops::RowRun& run : all) {
              const int64_t num_bytes = run.num_rows * row_bytes;
              if (num_bytes == 0) continue;
              some->push_back({source + run.source_begin * row_bytes,
                               static_cast<std::byte*>(run.destination), num_bytes});
            }
          }));
  LaunchStoreRows(context, runs, context.NumberFrom(args.runs, [row_bytes](std::span<const ops::RowRun> all) {
    int64_t longest = 0;
    for (const ops::RowRun& run : all) longest = std::max(longest, run.num_rows * row_bytes);
    return SharesOfRun(longest);
  }));
  return {};
}

}  // namespace

Status StoreRows(CudaContext& context, const ops::StoreRowsArgs& args) {
  if (args.pack.has_value() && args.source.dtype != DType::kBF16)
    return Unimplemented("op store_rows: this backend packs rows of bf16");
  const bool is_bf16 = args.source.dtype == DType::kBF16;
  const RowsOperand rows = {.in = args.source.data,
                            .in_stride = args.source.shape[1],
                            .out = args.source.data,
                            .out_stride = args.source.shape[1],
                            .num_rows = args.source.shape[0],
                            .width = args.source.shape[1],
                            .in_is_bf16 = is_bf16,
                            .out_is_bf16 = is_bf16};
  const Plan<StorePath> plan =
      FirstFit(StoreRules(),
               {.dtype = args.source.dtype,
                .num_runs = args.runs.size(),
                .packs = args.pack.has_value(),
                .scale = args.pack.has_value() ? args.pack->scale : CacheScale::kE8m0,
                .continues_rows = context.lowering().ContinuesRows(rows)},
               context.limits());
  context.Chose(plan);
  switch (plan.kernel) {
    case StorePath::kRows:
      return AddStore(context, args, rows);
    case StorePath::kPack:
      return Pack(context, args);
    case StorePath::kCopy:
      break;
  }
  return Copy(context, args);
}

Status GatherRows(CudaContext& context, const ops::GatherRowsArgs& args) {
  std::vector<ByteRun> runs;
  int64_t longest = 0;
  ops::ForEachStretch(args, [&](const std::byte* from, std::byte* to, int64_t num_bytes) {
    if (num_bytes > 0) runs.push_back({from, to, num_bytes});
    longest = std::max(longest, num_bytes);
  });
  DSV4_ASSIGN_OR_RETURN_STATUS(const DeviceArray<ByteRun> array,
                               context.Stage(std::span<const ByteRun>(runs)));
  LaunchStoreRows(context, array, SharesOfRun(longest));
  return {};
}

}  // namespace dsv4::backend::cuda
