#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>

#include "backend/cuda/kernels/gemm/gemm_splitk_wgmma.h"
#include "backend/cuda/kernels/gemm/splitk_kernel.cuh"
#include "backend/cuda/kernels/gemm/splitk_params.cuh"
#include "backend/cuda/lowering/splitk_shape.h"
#include "backend/cuda/runtime/memory_range.h"

namespace dsv4::backend::cuda {
namespace {

using slice_kernel::GemmSplitKKernel;
using slice_kernel::kGroups;
using slice_kernel::kMaxMatrices;
using slice_kernel::kRows;
using slice_kernel::kThreads;
using slice_kernel::Matrix;
using slice_kernel::Params;
using slice_kernel::SharedBytes;

static_assert(kRows == kSplitKRows && slice_kernel::kChunk == kSplitKChunk &&
              slice_kernel::kMaxColumns == kSplitKMaxColumns);

using Kernel = void (*)(Params);

template <int kTokens, bool kWhole>
Kernel KernelOf(StreamKind kind) {
  switch (kind) {
    case StreamKind::kFp8:
      return GemmSplitKKernel<kTokens, kWhole, StreamKind::kFp8>;
    case StreamKind::kFp8Plain:
      return GemmSplitKKernel<kTokens, kWhole, StreamKind::kFp8Plain>;
    default:
      return GemmSplitKKernel<kTokens, kWhole, StreamKind::kBf16>;
  }
}

// The kernel for these matrices; null where they do not go together. The release's own mixture is FP8 and BF16.
template <int kTokens, bool kWhole>
Kernel KernelOf(const Params& params) {
  bool alike = true;
  bool fp8_or_bf16 = true;
  for (int i = 0; i < params.num_matrices; ++i) {
    const StreamKind kind = params.matrices[i].shape.kind;
    alike = alike && kind == params.matrices[0].shape.kind;
    fp8_or_bf16 = fp8_or_bf16 && (kind == StreamKind::kFp8 || kind == StreamKind::kBf16);
  }
  if (alike) return KernelOf<kTokens, kWhole>(params.matrices[0].shape.kind);
  return fp8_or_bf16
             ? static_cast<Kernel>(GemmSplitKKernel<kTokens, kWhole, StreamKind::kFp8, StreamKind::kBf16>)
             : nullptr;
}
Kernel KernelOf(const Params& params, int tokens) {
  if (tokens == 64) return params.slices == 1 ? KernelOf<64, true>(params) : KernelOf<64, false>(params);
  return params.slices == 1 ? KernelOf<32, true>(params) : KernelOf<32, false>(params);
}

int64_t NumTiles(const Params& params) {
  int64_t tiles = 0;
  for (int i = 0; i < params.num_matrices; ++i)
    tiles += int64_t{params.num_groups} * params.matrices[i].row_tiles;
  return tiles;
}
bool HasArrivals(const Params& params) {
  return params.slices == 1 || NumTiles(params) * params.token_tiles <= kNumGridBarriers * kArrivalsOfBarrier;
}

// Deals the row tiles out, in as few rounds of the warpgroups as can be.
int64_t DealTiles(Params& params, int num_sms) {
  constexpr int64_t kRoundsOfBeginning = 2;  // What a block does beside its tiles takes about so long.
  const int64_t columns = int64_t{params.num_groups} * params.slices * params.token_tiles;
  int most_tiles = 0;
  for (int i = 0; i < params.num_matrices; ++i)
    most_tiles = std::max(most_tiles, params.matrices[i].row_tiles);
  const auto blocks_of = [&](int tiles_per_block) {
    int64_t blocks = 0;
    for (int i = 0; i < params.num_matrices; ++i)
      blocks += columns * CeilDiv(params.matrices[i].row_tiles, tiles_per_block);
    return blocks;
  };
  int64_t least = 0;
  for (int tiles = kGroups; tiles < most_tiles + kGroups; tiles += kGroups) {
    const int64_t rounds = CeilDiv(blocks_of(tiles), num_sms) * (tiles / kGroups + kRoundsOfBeginning);
    if (least != 0 && rounds >= least) continue;
    least = rounds;
    params.tiles_per_block = tiles;
  }
  int64_t first_block = 0;
  int64_t first_tile = 0;
  for (int i = 0; i < params.num_matrices; ++i) {
    Matrix& matrix = params.matrices[i];
    matrix.first_block = static_cast<int>(first_block);
    matrix.first_tile = static_cast<int>(first_tile);
    matrix.blocks_per_slice = static_cast<int>(CeilDiv(matrix.row_tiles, params.tiles_per_block));
    first_block += columns * matrix.blocks_per_slice;
    first_tile += int64_t{params.num_groups} * matrix.row_tiles;
  }
  return first_block;
}

void AddMatrix(Params& params, const GemmArgs& args) {
  const int64_t rows_per_group = args.weight.rows / args.num_groups;
  Matrix& matrix = params.matrices[params.num_matrices++];
  matrix.shape = ShapeOf(args.weight);
  matrix.data = args.weight.data;
  matrix.scale = args.weight.scale;
  matrix.y = MakeLinearOutput(args.y, args.y_stride, rows_per_group);
  matrix.rows_per_group = static_cast<int>(rows_per_group);
  matrix.row_tiles = static_cast<int>(CeilDiv(rows_per_group, kRows));
}

// Launches params, or puts them in place of `before` (0: nothing): the launch's number, 0 if that is too late.
Result<uint64_t> Launch(CudaContext& context, Params& params, int tokens, uint64_t before) {
  const int64_t blocks = DealTiles(params, context.queue().num_sms() - params.mix_blocks);
  if (params.slices > 1) {
    DSV4_ASSIGN_OR_RETURN(params.sums, context.Scratch<float4>(NumTiles(params) * params.token_tiles *
                                                               params.slices * kRows * tokens / 4));
    DSV4_ASSIGN_OR_RETURN(GridBarrier* const barriers, context.GridBarriers());
    params.arrivals = barriers->arrivals;
  }
  size_t shared_bytes = sizeof(MixesMemory);
  for (int i = 0; i < params.num_matrices; ++i) {
    const auto bytes = [&]<StreamKind kKind>() {
      return SharedBytes<kKind>(params.slice_chunks, tokens, params.tiles_per_block);
    };
    const StreamKind kind = params.matrices[i].shape.kind;
    shared_bytes = std::max(
        shared_bytes, kind == StreamKind::kFp8        ? bytes.template operator()<StreamKind::kFp8>()
                      : kind == StreamKind::kFp8Plain ? bytes.template operator()<StreamKind::kFp8Plain>()
                                                      : bytes.template operator()<StreamKind::kBf16>());
  }
  return context.queue().LaunchInPlaceOf(before, KernelOf(params, tokens),
                                         static_cast<unsigned>(params.mix_blocks + blocks), kThreads,
                                         shared_bytes, params);
}

}  // namespace

// A launch that may fuse with the next linear of the same activations.
struct OpenSlices {
  uint64_t launch = 0;
  Slices slices;
  Params params;
};

namespace {

// Whether this linear has become part of the last launch, which was one of the same activations.
Result<bool> FusesWithLast(CudaContext& context, const GemmArgs& args, const Slices& slices) {
  const std::shared_ptr<OpenSlices> open = context.open_slices();
  if (open == nullptr || args.num_groups != 1 || !context.queue().IsLastLaunch(open->launch)) return false;
  const Params& before = open->params;
  const int64_t num_tokens = args.x.shape[0];
  if (before.x != args.x.data || before.num_tokens != num_tokens ||
      before.x_group_stride != args.weight.cols || before.x_stride != args.x_stride ||
      open->slices != slices || before.num_matrices == kMaxMatrices) {
    return false;
  }
  // All of a launch runs at once: nothing that one product writes may be what another reads or writes.
  const MemoryRange y =
      RangeOfRows(args.y.data, args.y_stride, args.weight.rows, args.y.dtype == DType::kBF16, num_tokens);
  const MemoryRange x = RangeOfRows(args.x.data, args.x_stride, args.weight.cols, true, num_tokens);
  std::array<MemoryRange, kMaxMatrices> written;
  for (int i = 0; i < before.num_matrices; ++i) {
    const Matrix& m = before.matrices[i];
    written[i] = RangeOfRows(m.y.data, m.y.stride, m.rows_per_group, m.y.is_bf16, num_tokens);
  }
  if (!MayRunTogether({.reads = {&x, 1}, .writes = std::span(written).first(before.num_matrices)},
                      {.reads = {}, .writes = {&y, 1}})) {
    return false;
  }
  Params params = before;
  AddMatrix(params, args);
  if (!HasArrivals(params) || KernelOf(params, slices.tokens) == nullptr) return false;
  DSV4_ASSIGN_OR_RETURN(const uint64_t launch, Launch(context, params, slices.tokens, open->launch));
  if (launch == 0) return false;
  *open = {launch, slices, params};
  context.Fused(FusionRule::kLinearsSplitK);
  return true;
}

}  // namespace

Status GemmSplitK(CudaContext& context, const GemmArgs& args) {
  const StreamShape shape = ShapeOf(args.weight);
  const Slices slices = SlicesOf(shape, args.x.shape[0]);
  DSV4_ASSIGN_OR_RETURN_STATUS(const bool fused, FusesWithLast(context, args, slices));
  if (fused) return {};
  Params params = {};
  params.x = args.x.as<const uint16_t>();
  params.x_stride = args.x_stride;
  params.x_group_stride = args.weight.cols;
  params.num_groups = static_cast<int>(args.num_groups);
  params.slices = slices.count;
  params.slice_chunks = slices.chunks;
  params.num_chunks = shape.units / ChunkUnits(shape);
  params.num_tokens = static_cast<int>(args.x.shape[0]);
  params.token_tiles = static_cast<int>(CeilDiv(args.x.shape[0], slices.tokens));
  AddMatrix(params, args);
  if (const std::optional<HcMixWork> mix = TakeHcMix(context); mix.has_value()) {
    params.mix = mix->params;
    params.mix_tokens = mix->num_tokens;
    params.mix_blocks = MixBlocks(mix->num_tokens);
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(const uint64_t launch, Launch(context, params, slices.tokens, 0));
  context.open_slices() =
      args.num_groups == 1 ? std::make_shared<OpenSlices>(OpenSlices{launch, slices, params}) : nullptr;
  return {};
}

}  // namespace dsv4::backend::cuda
