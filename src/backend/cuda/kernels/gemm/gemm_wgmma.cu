// linear and grouped_linear of many tokens on wgmma, with weights widened to bf16 tile by tile.
#include <algorithm>

#include "backend/cuda/kernels/gemm/gemm_wgmma.h"
#include "backend/cuda/kernels/gemm/gemm_wgmma_tiles.cuh"
#include "backend/cuda/kernels/gemm/store_tile.cuh"

namespace dsv4::backend::cuda {
namespace {

struct Params {
  DeviceWeight weight;
  PackedRows x;
  LinearOutput y;
  int rows_per_group;
  int row_tiles;  // A group's.
  int num_groups;
  int num_tokens;
  int tokens_per_tile;
  int token_tiles;
};

// Token tiles that are worked on side by side with all row tiles, so that both stay in the L2 cache.
constexpr int kTokenTilesTogether = 8;

template <MatmulKind kKind>
__global__ void __launch_bounds__(kWgmmaThreads, 1) GemmWgmmaKernel(const __grid_constant__ Params p) {
  BeginKernel();
  const int row_tiles = p.row_tiles * p.num_groups;
  const auto find = [&](int64_t i, WgmmaItem& item) {
    if (i >= int64_t{row_tiles} * p.token_tiles) return false;
    const int band_tiles = row_tiles * kTokenTilesTogether;
    const int band = static_cast<int>(i / band_tiles);
    const int place = static_cast<int>(i % band_tiles);
    const int together = min(kTokenTilesTogether, p.token_tiles - band * kTokenTilesTogether);
    const int row_tile = place / together;
    const int token_tile = band * kTokenTilesTogether + place % together;
    const int group = row_tile / p.row_tiles;
    const int first_token = token_tile * p.tokens_per_tile;
    item = {.data = {p.weight.data, p.weight.data},
            .scale = {p.weight.scale, p.weight.scale},
            .global_scale = {p.weight.global_scale, p.weight.global_scale},
            .first_row = group * p.rows_per_group + row_tile % p.row_tiles * kWgmmaRows,
            .row_end = (group + 1) * p.rows_per_group,
            .first_x_block = group * static_cast<int>(p.weight.cols / kPackedCols),
            .first_x_row = first_token,
            .num_tokens = min(p.tokens_per_tile, p.num_tokens - first_token)};
    return true;
  };
  const auto store = [&]<int kTokens>(const WgmmaItem& item, const WgmmaTokenNotes&,
                                      float(&sums)[kTokens / 2], float4*) {
    // Rows of the weight are columns of y, group by group.
    StoreSums<kTokens>(p.y, WgmmaWeights<kKind, WgmmaRows::kNeighbours>::Row(item, 0), item.row_end,
                       item.first_x_row, item.num_tokens, sums);
  };
  WgmmaTiles<kKind, WgmmaRows::kNeighbours>(
      p.weight, p.x, find, [](const WgmmaItem&, const WgmmaTokenNotes&, int) {}, store);
}

}  // namespace

Status GemmWgmma(LaunchContext& context, const GemmArgs& args) {
  const int64_t num_tokens = args.x.shape[0];
  const int64_t rows_per_group = args.weight.rows / args.num_groups;
  const RowSource source = {
      .x = args.x.data, .dtype = args.x.dtype, .stride = args.x_stride, .num_rows = num_tokens};
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const PackedRows x,
      PackTokens(context, source, args.num_groups * args.weight.cols, args.weight.x_group, args.weight.kind));
  const int64_t token_tiles = CeilDiv(num_tokens, kWgmmaTokens);
  const int64_t tokens_per_tile = CeilDiv(CeilDiv(num_tokens, token_tiles), kPackedRows) * kPackedRows;
  const Params params = {.weight = args.weight,
                         .x = x,
                         .y = MakeLinearOutput(args.y, args.y_stride, rows_per_group),
                         .rows_per_group = static_cast<int>(rows_per_group),
                         .row_tiles = static_cast<int>(CeilDiv(rows_per_group, kWgmmaRows)),
                         .num_groups = static_cast<int>(args.num_groups),
                         .num_tokens = static_cast<int>(num_tokens),
                         .tokens_per_tile = static_cast<int>(tokens_per_tile),
                         .token_tiles = static_cast<int>(CeilDiv(num_tokens, tokens_per_tile))};
  const int64_t num_tiles = int64_t{params.row_tiles} * params.num_groups * params.token_tiles;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(num_tiles, context.limits().num_sms));
  WithMmaKind(args.weight.kind, [&]<MatmulKind kKind>() {
    context.Launch(GemmWgmmaKernel<kKind>, blocks, kWgmmaThreads, sizeof(WgmmaMemory<kKind>), params);
  });
  KeepPackedTokens(context, source, args.num_groups * args.weight.cols, args.weight.x_group, args.weight.kind,
                   x, args.y, args.y_stride);
  return {};
}

}  // namespace dsv4::backend::cuda
