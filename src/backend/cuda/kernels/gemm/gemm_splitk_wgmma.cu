// Launch of the split-K GEMM for 9 to 895 tokens on wgmma: tiles of several matrices dealt out to resident
// blocks.
#include <algorithm>
#include <span>

#include "backend/cuda/kernels/gemm/gemm_splitk_wgmma.h"
#include "backend/cuda/kernels/gemm/splitk_kernel.cuh"
#include "backend/cuda/kernels/gemm/splitk_params.cuh"
#include "backend/cuda/lowering/splitk_shape.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

using slice_kernel::kGroups;
using slice_kernel::kMaxMatrices;
using slice_kernel::kRows;
using slice_kernel::kThreads;
using slice_kernel::Matrix;
using slice_kernel::Params;
using slice_kernel::SharedBytes;
using slice_kernel::SplitkKernel;

static_assert(kMaxMatrices == kMaxFusedMatrices);
static_assert(kRows == kSplitKRows && slice_kernel::kChunk == kSplitKChunk &&
              slice_kernel::kMaxColumns == kSplitKMaxColumns);

using Kernel = void (*)(Params);

template <int kTokens, bool kWhole>
Kernel KernelOf(StreamKind kind) {
  switch (kind) {
    case StreamKind::kFp8:
      return SplitkKernel<kTokens, kWhole, StreamKind::kFp8>;
    case StreamKind::kFp8Plain:
      return SplitkKernel<kTokens, kWhole, StreamKind::kFp8Plain>;
    case StreamKind::kMxFp8:
    case StreamKind::kMxFp8Halves:
      return SplitkKernel<kTokens, kWhole, StreamKind::kMxFp8>;
    default:
      return SplitkKernel<kTokens, kWhole, StreamKind::kBf16>;
  }
}

// The kernel for these matrices; null where they do not go together. The releases' own mixtures are FP8 and
// BF16.
template <int kTokens, bool kWhole>
Kernel KernelOf(const Params& params) {
  bool alike = true;
  bool fp8_or_bf16 = true;
  bool mxfp8_or_bf16 = true;
  for (int i = 0; i < params.num_matrices; ++i) {
    const StreamKind kind = params.matrices[i].shape.kind;
    alike = alike && kind == params.matrices[0].shape.kind;
    fp8_or_bf16 = fp8_or_bf16 && (kind == StreamKind::kFp8 || kind == StreamKind::kBf16);
    mxfp8_or_bf16 = mxfp8_or_bf16 && (kind == StreamKind::kMxFp8 || kind == StreamKind::kBf16);
  }
  if (alike) return KernelOf<kTokens, kWhole>(params.matrices[0].shape.kind);
  if (mxfp8_or_bf16) return SplitkKernel<kTokens, kWhole, StreamKind::kMxFp8, StreamKind::kBf16>;
  return fp8_or_bf16 ? static_cast<Kernel>(SplitkKernel<kTokens, kWhole, StreamKind::kFp8, StreamKind::kBf16>)
                     : nullptr;
}
Kernel KernelOf(const Params& params, int tokens) {
  const bool whole = params.slices == 1;
  switch (tokens) {
    case 128:
      return KernelOf<128, false>(params);
    case 96:
      return KernelOf<96, false>(params);
    case 80:
      return KernelOf<80, false>(params);
    case 64:
      return whole ? KernelOf<64, true>(params) : KernelOf<64, false>(params);
    case 48:
      return whole ? KernelOf<48, true>(params) : KernelOf<48, false>(params);
    default:
      return whole ? KernelOf<32, true>(params) : KernelOf<32, false>(params);
  }
}

int64_t NumTiles(const Params& params) {
  int64_t tiles = 0;
  for (int i = 0; i < params.num_matrices; ++i)
    tiles += int64_t{params.num_groups} * params.matrices[i].row_tiles;
  return tiles;
}

// Deals the row tiles out, in as few rounds of the warpgroups as can be.
int64_t DealTiles(Params& params, int num_sms) {
  constexpr int64_t kRoundsOfBeginning = 2;  // Cost of a block beside its tiles.
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

void AddMatrix(Params& params, const LinearWork& args) {
  TensorView y;
  y.data = args.y;
  y.dtype = args.y_is_bf16 ? DType::kBF16 : DType::kF32;
  Matrix& matrix = params.matrices[params.num_matrices++];
  matrix.shape = ShapeOf(args.weight);
  matrix.data = args.weight.data;
  matrix.scale = args.weight.scale;
  matrix.y = MakeLinearOutput(y, args.y_stride, args.rows_per_group);
  matrix.rows_per_group = static_cast<int>(args.rows_per_group);
  matrix.row_tiles = static_cast<int>(SplitKTiles(args.rows_per_group));
}

size_t SharedBytesOf(const Params& params, int tokens) {
  size_t shared_bytes = sizeof(MixesMemory);
  for (int i = 0; i < params.num_matrices; ++i) {
    const auto bytes = [&]<StreamKind kKind>() {
      return SharedBytes<kKind>(params.slice_chunks, tokens, params.tiles_per_block);
    };
    const StreamKind kind = params.matrices[i].shape.kind;
    shared_bytes = std::max(
        shared_bytes, kind == StreamKind::kFp8        ? bytes.template operator()<StreamKind::kFp8>()
                      : kind == StreamKind::kFp8Plain ? bytes.template operator()<StreamKind::kFp8Plain>()
                      : kind == StreamKind::kMxFp8    ? bytes.template operator()<StreamKind::kMxFp8>()
                                                      : bytes.template operator()<StreamKind::kBf16>());
  }
  return shared_bytes;
}

}  // namespace

Status LaunchGemmSplitK(LaunchContext& context, std::span<const LinearWork* const> linears) {
  const LinearWork& first = *linears[0];
  const StreamShape shape = ShapeOf(first.weight);
  const Slices slices = SlicesOf(shape, first.num_tokens);
  Params params = {};
  params.x = first.x;
  params.x_stride = first.x_stride;
  params.x_group_stride = first.x_group_stride;
  params.num_groups = static_cast<int>(first.num_groups);
  params.slices = slices.count;
  params.slice_chunks = slices.chunks;
  params.num_chunks = shape.units / ChunkUnits(shape);
  params.num_tokens = static_cast<int>(first.num_tokens);
  params.token_tiles = static_cast<int>(SplitKTokenTiles(slices, first.num_tokens));
  for (const LinearWork* const linear : linears) AddMatrix(params, *linear);
  if (first.mix.num_tokens > 0) {
    params.mix = first.mix.params;
    params.mix_tokens = first.mix.num_tokens;
    params.mix_blocks = MixBlocks(first.mix.num_tokens);
  }
  const int64_t blocks = DealTiles(params, context.limits().num_sms - params.mix_blocks);
  if (params.slices > 1) {
    const int64_t sums = NumTiles(params) * params.token_tiles * params.slices * kRows * slices.tokens / 4;
    DSV4_ASSIGN_OR_RETURN_STATUS(params.sums, context.Scratch<float4>(sums));
    DSV4_ASSIGN_OR_RETURN_STATUS(GridBarrier* const barriers, context.GridBarriers());
    params.arrivals = barriers->arrivals;
  }
  context.Launch(KernelOf(params, slices.tokens), static_cast<unsigned>(params.mix_blocks + blocks), kThreads,
                 SharedBytesOf(params, slices.tokens), params);
  return {};
}

}  // namespace dsv4::backend::cuda
