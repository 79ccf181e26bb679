// linear and grouped_linear of many tokens on wgmma, with weights widened to bf16 tile by tile.
#include <algorithm>
#include <cstddef>

#include "backend/cuda/kernels/gemm/gemm_wgmma.h"
#include "backend/cuda/kernels/gemm/gemm_wgmma_tiles.cuh"
#include "backend/cuda/kernels/gemm/store_tile.cuh"

namespace dsv4::backend::cuda {
namespace {

constexpr int kMaxMatrices = static_cast<int>(kMaxFusedMatrices);

struct Matrix {
  const uint8_t* data;
  const void* scale;
  float global_scale;
  LinearOutput y;
  int rows_per_group;
  int first_tile;  // First row tile, among those of all matrices.
};

struct Params {
  DeviceWeight weight;  // All matrices' but for their rows.
  int num_matrices;
  PackedRows x;
  int row_tiles;  // A group's, or those of all matrices.
  int num_groups;
  int num_tokens;
  int tokens_per_tile;
  int token_tiles;
  Matrix matrices[kMaxMatrices];  // Last (ClearPadding).
};
static_assert(offsetof(Params, matrices) + sizeof(Params::matrices) == sizeof(Params));

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
    const int tile = row_tile % p.row_tiles;
    int of = 0;
    while (of + 1 < p.num_matrices && tile >= p.matrices[of + 1].first_tile) ++of;
    const Matrix& matrix = p.matrices[of];
    const int first_token = token_tile * p.tokens_per_tile;
    item = {.data = {matrix.data, matrix.data},
            .scale = {matrix.scale, matrix.scale},
            .global_scale = {matrix.global_scale, matrix.global_scale},
            .first_row = group * matrix.rows_per_group + (tile - matrix.first_tile) * kWgmmaRows,
            .row_end = (group + 1) * matrix.rows_per_group,
            .first_x_block = group * static_cast<int>(p.weight.cols / kPackedCols),
            .first_x_row = first_token,
            .num_tokens = min(p.tokens_per_tile, p.num_tokens - first_token),
            .matrix = of};
    return true;
  };
  const auto store = [&]<int kTokens>(const WgmmaItem& item, const WgmmaTokenNotes&,
                                      float(&sums)[kTokens / 2], float4*) {
    // Rows of the weight are columns of y, group by group.
    StoreSums<kTokens>(p.matrices[item.matrix].y, WgmmaWeights<kKind, WgmmaRows::kNeighbours>::Row(item, 0),
                       item.row_end, item.first_x_row, item.num_tokens, sums);
  };
  WgmmaTiles<kKind, WgmmaRows::kNeighbours>(
      p.weight, p.x, find, [](const WgmmaItem&, const WgmmaTokenNotes&, int) {}, store);
}

void AddMatrix(Params& params, const DeviceWeight& weight, int64_t rows_per_group, const TensorView& y,
               int64_t y_stride) {
  params.matrices[params.num_matrices++] = {.data = weight.data,
                                            .scale = weight.scale,
                                            .global_scale = weight.global_scale,
                                            .y = MakeLinearOutput(y, y_stride, rows_per_group),
                                            .rows_per_group = static_cast<int>(rows_per_group),
                                            .first_tile = params.row_tiles};
  params.row_tiles += static_cast<int>(CeilDiv(rows_per_group, kWgmmaRows));
}

void Launch(LaunchContext& context, Params& params, int64_t num_tokens) {
  const int64_t token_tiles = CeilDiv(num_tokens, kWgmmaTokens);
  params.num_tokens = static_cast<int>(num_tokens);
  params.tokens_per_tile =
      static_cast<int>(CeilDiv(CeilDiv(num_tokens, token_tiles), kPackedRows) * kPackedRows);
  params.token_tiles = static_cast<int>(CeilDiv(num_tokens, params.tokens_per_tile));
  const int64_t num_tiles = int64_t{params.row_tiles} * params.num_groups * params.token_tiles;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(num_tiles, context.limits().num_sms));
  WithMmaKind(params.weight.kind, [&]<MatmulKind kKind>() {
    context.Launch(GemmWgmmaKernel<kKind>, blocks, kWgmmaThreads, sizeof(WgmmaMemory<kKind>), params);
  });
}

}  // namespace

Status GemmWgmma(LaunchContext& context, const GemmArgs& args) {
  const int64_t num_tokens = args.x.shape[0];
  const RowSource source = {
      .x = args.x.data, .dtype = args.x.dtype, .stride = args.x_stride, .num_rows = num_tokens};
  Params params = {};
  params.weight = args.weight;
  params.num_groups = static_cast<int>(args.num_groups);
  DSV4_ASSIGN_OR_RETURN_STATUS(params.x, PackTokens(context, source, args.num_groups * args.weight.cols,
                                                    args.weight.x_group, args.weight.kind));
  AddMatrix(params, args.weight, args.weight.rows / args.num_groups, args.y, args.y_stride);
  Launch(context, params, num_tokens);
  KeepPackedTokens(context, source, args.num_groups * args.weight.cols, args.weight.x_group, args.weight.kind,
                   params.x, args.y, args.y_stride);
  return {};
}

Status LaunchGemmWgmma(LaunchContext& context, std::span<const LinearWork* const> linears) {
  const LinearWork& first = *linears[0];
  Params params = {};
  params.weight = first.weight;
  params.num_groups = 1;
  DSV4_ASSIGN_OR_RETURN_STATUS(
      params.x,
      Pack(context,
           RowSource{
               .x = first.x, .dtype = DType::kBF16, .stride = first.x_stride, .num_rows = first.num_tokens},
           first.weight.cols, first.weight.x_group, first.weight.kind));
  for (const LinearWork* const linear : linears) {
    TensorView y;
    y.data = linear->y;
    y.dtype = linear->y_is_bf16 ? DType::kBF16 : DType::kF32;
    AddMatrix(params, linear->weight, linear->rows_per_group, y, linear->y_stride);
  }
  Launch(context, params, first.num_tokens);
  return {};
}

}  // namespace dsv4::backend::cuda
