// Parameters of the kernel of gemm_splitk_wgmma.h (splitk_kernel.cuh), and the part of it that a block works
// on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/gemm/store_tile.cuh"
#include "backend/cuda/lowering/gemv_shape.h"
#include "backend/cuda/lowering/work/hyper_connection.h"

namespace dsv4::backend::cuda::slice_kernel {

inline constexpr int kRows = 64;   // A tile's.
inline constexpr int kGroups = 2;  // Warpgroups of a block.
inline constexpr int kGroupThreads = 128;
inline constexpr int kThreads = kGroups * kGroupThreads;
inline constexpr int kChunk = 64;  // Columns that are multiplied at a time: four steps of 16.
inline constexpr int kChunkWords = kChunk / 2;
inline constexpr int kMaxColumns = 1024;  // Columns of a slice of 64 tokens.
inline constexpr int kMaxMatrices = 8;    // A launch's.

struct Matrix {
  StreamShape shape;
  const uint8_t* data;
  const void* scale;
  LinearOutput y;
  int rows_per_group;
  int row_tiles;   // A group's.
  int first_tile;  // First of the matrix's row tiles among the launch's.
  int first_block;
  int blocks_per_slice;
};

struct Params {
  const uint16_t* x;
  int64_t x_stride;        // Between tokens,
  int64_t x_group_stride;  // between groups.
  float4* sums;  // Sums of a row tile: by slice, then as threads hold them; where there are several slices.
  uint32_t* arrivals;  // Arrivals at a row tile: how many slices are there. Zero before and after.
  int num_matrices;
  int num_groups;
  int slices;
  int slice_chunks;  // The last may have fewer.
  int num_chunks;
  int num_tokens;
  int token_tiles;
  int tiles_per_block;
  int mix_blocks;  // In front of all others: they do `mix`.
  int mix_tokens;
  HcPreParams mix;
  Matrix matrices
      [kMaxMatrices];  // Last (ClearPadding). Those behind num_matrices are zero: equal launches are equal bytes.
};
static_assert(offsetof(Params, matrices) + sizeof(Params::matrices) == sizeof(Params));

// Tile that a block works on.
struct Block {
  const Matrix* matrix;
  int group;
  int slice;
  int token_tile;
  int first_tile;  // First of the block's tiles among the group's.
  int num_tiles;
  int first_chunk;
  int num_chunks;

  __device__ explicit Block(const Params& p) {
    const int block = static_cast<int>(blockIdx.x) - p.mix_blocks;
    int m = 0;
    while (m + 1 < p.num_matrices && block >= p.matrices[m + 1].first_block) ++m;
    matrix = &p.matrices[m];
    int i = block - matrix->first_block;
    const int run = i % matrix->blocks_per_slice;
    i /= matrix->blocks_per_slice;
    token_tile = i % p.token_tiles;
    i /= p.token_tiles;
    slice = i % p.slices;
    group = i / p.slices;
    first_tile = run * p.tiles_per_block;
    num_tiles = min(p.tiles_per_block, matrix->row_tiles - first_tile);
    first_chunk = slice * p.slice_chunks;
    num_chunks = min(p.slice_chunks, p.num_chunks - first_chunk);
  }
  __device__ __forceinline__ int first_row() const { return group * matrix->rows_per_group; }
};

}  // namespace dsv4::backend::cuda::slice_kernel
