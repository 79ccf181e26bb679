// Schedule of GEMMs whose operands come by TMA (gemm_tma_bf16, gemm_tma_fp8): which tile a cluster works on,
// and in which order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/kernels/gemm/gemm_wgmma.h"

namespace dsv4::backend::cuda {

struct GemmTiles {
  int rows_per_group;
  int row_tiles;  // A group's.
  int num_groups;
  int num_tokens;
  int token_tiles;           // Tiles of a cluster's tokens.
  int token_tiles_together;  // Worked on side by side with all rows, so that both stay in the L2 cache.

  __host__ __device__ __forceinline__ int count() const { return row_tiles * num_groups * token_tiles; }
};

// Tiles of a product of tile_rows rows by cluster_tokens tokens a cluster. `bytes_of_token`: of a packed row
// of a group's columns.
inline GemmTiles MakeGemmTiles(const GemmArgs& args, int64_t tile_rows, int64_t cluster_tokens,
                               int64_t bytes_of_token) {
  constexpr int64_t kBytesTogether = int64_t{16} << 20;
  const int64_t num_tokens = args.x.shape[0];
  const int64_t rows_per_group = args.weight.rows / args.num_groups;
  return {.rows_per_group = static_cast<int>(rows_per_group),
          .row_tiles = static_cast<int>(CeilDiv(rows_per_group, tile_rows)),
          .num_groups = static_cast<int>(args.num_groups),
          .num_tokens = static_cast<int>(num_tokens),
          .token_tiles = static_cast<int>(CeilDiv(num_tokens, cluster_tokens)),
          .token_tiles_together = static_cast<int>(
              std::clamp<int64_t>(kBytesTogether / (cluster_tokens * bytes_of_token), 1, 16))};
}
// Rows that a packed weight has: the last group's tiles may reach past its own.
inline int64_t RowsOfTiles(const GemmTiles& tiles, int64_t tile_rows) {
  return int64_t{tiles.num_groups - 1} * tiles.rows_per_group + tiles.row_tiles * tile_rows;
}

struct GemmTile {
  int first_row;
  int row_end;  // The group's, or before the tile's end.
  int first_x_block;
  int first_token;
};

// Blocks of a cluster take the same rows, and tokens beside each other; i is a number of the cluster's tiles.
// Params: GemmTiles and `weight`, whose columns are packed in blocks of kBlockCols.
template <int kTileRows, int kTileTokens, int kCluster, int kBlockCols, typename Params>
__device__ __forceinline__ GemmTile FindGemmTile(const Params& p, int i) {
  const int band_tiles = p.row_tiles * p.num_groups * p.token_tiles_together;
  const int band = i / band_tiles;
  const int place = i % band_tiles;
  const int together = min(p.token_tiles_together, p.token_tiles - band * p.token_tiles_together);
  const int row_tile = place / together;
  const int group = row_tile / p.row_tiles;
  return {.first_row = group * p.rows_per_group + row_tile % p.row_tiles * kTileRows,
          .row_end = (group + 1) * p.rows_per_group,
          .first_x_block = group * static_cast<int>(p.weight.cols / kBlockCols),
          .first_token = ((band * p.token_tiles_together + place % together) * kCluster +
                          static_cast<int>(blockIdx.x) % kCluster) *
                         kTileTokens};
}

}  // namespace dsv4::backend::cuda
