// Rows of kReleaseRow on their way into the layout of wgmma_tma.cuh. Blocks have 64 columns, and in each a
// line of 128 bytes for every row, its eight pieces permuted. A block is a group of codes, which have one
// scale. They come to the first four pieces of their line and widen there; the last block's columns have no
// codes and come as they are.
#pragma once

#include "backend/cuda/device/numeric/packed_rows.cuh"
#include "backend/cuda/kernels/attention/hopper_layout.cuh"

namespace dsv4::backend::cuda::hopper {

inline constexpr int kCodedBlocks = kReleaseRowCoded / kReleaseRowGroup;
inline constexpr int kCodePieces = kReleaseRowGroup / 16;  // A line's.

__device__ __forceinline__ void CopyAsync8(uint32_t shared, const void* global, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(global), "r"(exists ? 8 : 0)
               : "memory");
}
// Whether WaitForPhase would not wait.
__device__ __forceinline__ bool HasPhase(uint64_t* barrier, uint32_t parity) {
  uint32_t has;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(has)
      : "r"(SharedAddress(barrier)), "r"(parity)
      : "memory");
  return has != 0;
}

// Asks for a line's piece: of codes one of kCodePieces, else one of kLinePieces. `block`: shared memory;
// zeros where no row is.
__device__ __forceinline__ void CopyPieceOfBlock(uint32_t block, int row, int piece, int of_block,
                                                 const unsigned char* from, const void* any) {
  const bool exists = from != nullptr;
  const int begin = of_block * kReleaseRowGroup + piece * 16;
  CopyAsync16(block + PieceOfLine(row, piece), exists ? static_cast<const void*>(from + begin) : any, exists);
}

// One line for each of a lane's kCount, of eight lanes; all lanes of the warp call it. lines[i] are blocks.
template <int kCount>
__device__ __forceinline__ void WidenLines(unsigned char* const (&blocks)[kCount], const int (&rows)[kCount],
                                           const uint32_t (&scales)[kCount], int piece) {
  uint2 codes[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    codes[i] = *reinterpret_cast<const uint2*>(blocks[i] + PieceOfLine(rows[i], piece / 2) + piece % 2 * 8);
  __syncwarp();
  WidenE4m3(codes, scales, [&](int i, const uint4& wide) {
    *reinterpret_cast<uint4*>(blocks[i] + PieceOfLine(rows[i], piece)) = wide;
  });
}

}  // namespace dsv4::backend::cuda::hopper
