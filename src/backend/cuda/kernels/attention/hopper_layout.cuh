// Common parts of the attentions by wgmma (hopper_two_pass, hopper_in_registers, hopper_cluster_columns):
// sizes, how rows lie in shared memory, and how warps divide the work.
#pragma once

#include "backend/cuda/device/ptx/wgmma_tma.cuh"

namespace dsv4::backend::cuda::hopper {

inline constexpr int kDim = 512;
inline constexpr int kHeads = 64;          // Sizes of a block or cluster,
inline constexpr int kKeys = 64;           // and keys of a tile.
inline constexpr int kLogits = kKeys / 2;  // A thread's of a tile, where a warpgroup has it.

// 64 rows of kDim, [kRowBlocks][64][kCols]: blocks of columns, in each a line for every row, whose pieces of
// 16 bytes are permuted.
inline constexpr int kCols = 64;
inline constexpr int kLineBytes = 2 * kCols;
inline constexpr int kLinePieces = kLineBytes / 16;
inline constexpr int kBlockBytes = kKeys * kLineBytes;
inline constexpr int kRowBlocks = kDim / kCols;
inline constexpr int kRowsBytes = kRowBlocks * kBlockBytes;
struct Rows {
  unsigned char bytes[kRowsBytes];
};
// Address of a piece of a row in its block.
__device__ __forceinline__ uint32_t PieceOfLine(int row, int piece) {
  return static_cast<uint32_t>(row * kLineBytes + (piece ^ (row % kLinePieces)) * 16);
}

// Two warpgroups multiply; the third brings rows, in the kernels that have one.
inline constexpr int kConsumers = 256;
inline constexpr int kProducers = 128;
inline constexpr int kConsumerRegisters = 224;
// A block gets 168 registers a thread at first.
inline constexpr int kProducerRegisters =
    (168 * (kConsumers + kProducers) - kConsumers * kConsumerRegisters) / kProducers;

// A consumer's share of a warpgroup's sums: columns 8 j + 2 place and the next, of heads row and row + 8.
__device__ __forceinline__ int PlaceOf(int thread) { return thread % 32 % 4; }
__device__ __forceinline__ int RowOf(int thread) { return thread % 128 / 32 * 16 + thread % 32 / 4; }

}  // namespace dsv4::backend::cuda::hopper
