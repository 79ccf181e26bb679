// Blackwell's tensor cores (sm_100a, `tcgen05`) with scales of blocks, as block_scaled.cuh uses it. NEVER
// RUN: there was no such card; what is here was compiled, disassembled, and checked against the PTX ISA by
// reading.
//
// One thread multiplies for the whole block. The product is D [128, N] += (A [128, K] * scales) (B [N, K] *
// scales)^T. Operands A and B lie in shared memory. Tensor memory has D (a lane a row, a column of 32 bits a
// column) and the scales. It has 512 columns of 128 lanes an SM. Steps are 32 bytes of K, and work in the
// order in which one thread issues them. Copies of scales into tensor memory are part of that order. Barriers
// and copies are wgmma_tma.cuh's.
#pragma once

#include <cstdint>

#include "backend/cuda/device/ptx/wgmma_tma.cuh"

namespace dsv4::backend::cuda {

// --- Tensor memory ---------------------------------------------------------------------------------------------------

// By one whole warp; the address comes to `shared`. kColumns: a power of two from 32 to 512. A block that
// asks for more than is free waits until another block gives back what it has.
template <int kColumns>
__device__ __forceinline__ void AllocateTensorMemory(uint32_t* shared) {
  static_assert(kColumns >= 32 && kColumns <= 512 && (kColumns & (kColumns - 1)) == 0);
  asm volatile(
      "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(SharedAddress(shared)),
      "n"(kColumns)
      : "memory");
  // Other blocks of the SM may now allocate.
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
}
// By the warp that allocated, when no warp uses it any more.
template <int kColumns>
__device__ __forceinline__ void FreeTensorMemory(uint32_t address) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address), "n"(kColumns)
               : "memory");
}

// A thread's tcgen05 instructions are ordered with those of others by a barrier only between these two.
__device__ __forceinline__ void BeforeThreadsMeet() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
__device__ __forceinline__ void AfterThreadsMet() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

// Sixteen columns from `address` of the 32 lanes that belong to this warp, 32 (warp % 4) and following; a
// thread gets its lane's.
__device__ __forceinline__ void LoadTensorColumns(uint32_t address, float (&columns)[16]) {
  uint32_t bits[16];
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x16.b32 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, [%16];\n"
      "tcgen05.wait::ld.sync.aligned;"
      : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3]), "=r"(bits[4]), "=r"(bits[5]),
        "=r"(bits[6]), "=r"(bits[7]), "=r"(bits[8]), "=r"(bits[9]), "=r"(bits[10]), "=r"(bits[11]),
        "=r"(bits[12]), "=r"(bits[13]), "=r"(bits[14]), "=r"(bits[15])
      : "r"(address)
      : "memory");
#pragma unroll
  for (int i = 0; i < 16; ++i) columns[i] = __uint_as_float(bits[i]);
}

// --- Operands --------------------------------------------------------------------------------------------------------

// Descriptor of an operand in shared memory: rows of 128 bytes, eight rows a kilobyte. The 16-byte pieces of
// a row are permuted: piece i of row r at i ^ r % 8. `address`: a kilobyte's beginning; a step further is 32
// bytes further. The bits are address / 16, and from bit 32 the distance of groups of eight rows / 16. From
// bit 46 it has 1, which tells this unit's descriptors from Hopper's. From bit 61 it has 2 for the
// permutation. (The distance from bit 16 is not used by this layout.)
__device__ __forceinline__ uint64_t OperandDescriptor(uint32_t address) {
  return (uint64_t{2} << 61) | (uint64_t{1} << 46) | (uint64_t{1024 >> 4} << 32) | (uint64_t{1} << 16) |
         ((address & 0x3FFFFU) >> 4);
}
inline constexpr uint64_t kOperandStep = 32 >> 4;

// Descriptor of 128 rows of four scales, 512 bytes: those of row r at 16 (r % 32) + 4 (r / 32). Nothing is
// permuted, groups of eight 16-byte lines follow each other.
__device__ __forceinline__ uint64_t ScalesDescriptor(uint32_t address) {
  return (uint64_t{1} << 46) | (uint64_t{128 >> 4} << 32) | (uint64_t{1} << 16) | ((address & 0x3FFFFU) >> 4);
}
// Brings them to four columns from `address`. Lane l has the scales of rows l, l + 32, l + 64, l + 96. So
// have lanes l + 32, l + 64 and l + 96. One thread; in order with its steps.
__device__ __forceinline__ void CopyScales(uint32_t address, uint64_t descriptor) {
  asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(address), "l"(descriptor) : "memory");
}

// --- Steps -----------------------------------------------------------------------------------------------------------

// Operands that a step multiplies.
enum class BlockScaledStep : uint8_t {
  kE4m3ByE4m3,  // 32 columns; e8m0 scales of 32 columns, of which the step takes one a row.
  kE2m1ByE4m3,  // The same; 16 e2m1 of A lie in 8 bytes, and 8 bytes behind them are not read.
  kE2m1ByE2m1,  // 64 columns; e4m3 scales of 16 columns, of which the step takes four a row.
};

// Formats and sizes of a step, in 32 bits. Formats of A and B are at bits 7 and 10, N / 8 at 17. A flag for
// e8m0 scales is at 23, 128 rows at 27.
__host__ __device__ constexpr uint32_t StepDescriptor(BlockScaledStep step, int num_columns) {
  // In the numbering of the steps of 8-bit operands e4m3 is 0 and e2m1 is 5, in that of 4-bit operands e2m1
  // is 1.
  const uint32_t a =
      step == BlockScaledStep::kE4m3ByE4m3 ? 0U : (step == BlockScaledStep::kE2m1ByE4m3 ? 5U : 1U);
  const uint32_t b = step == BlockScaledStep::kE2m1ByE2m1 ? 1U : 0U;
  const uint32_t e8m0 = step == BlockScaledStep::kE2m1ByE2m1 ? 0U : 1U;
  return (a << 7) | (b << 10) | (static_cast<uint32_t>(num_columns) >> 3 << 17) | (e8m0 << 23) |
         (128U >> 7 << 27);
}
// The step takes scale `i` of the four that a column of tensor memory holds for a row. It is at bit 4 for B
// and at bit 29 for A.
__host__ __device__ constexpr uint32_t WithScale(uint32_t descriptor, uint32_t i) {
  return descriptor | (i << 4) | (i << 29);
}

// One step by one thread: d += ..., or d = ... where `adds` is 0. N: a multiple of 16 up to 256.
template <BlockScaledStep kStep>
__device__ __forceinline__ void MultiplyBlockScaled(uint32_t d, uint64_t a, uint64_t b, uint32_t descriptor,
                                                    uint32_t a_scales, uint32_t b_scales, int adds) {
  if constexpr (kStep == BlockScaledStep::kE2m1ByE2m1) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
        "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X [%0], %1, %2, %3, [%4], [%5], "
        "p;\n}" ::"r"(d),
        "l"(a), "l"(b), "r"(descriptor), "r"(a_scales), "r"(b_scales), "r"(adds)
        : "memory");
  } else {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
        "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [%0], %1, %2, %3, [%4], [%5], "
        "p;\n}" ::"r"(d),
        "l"(a), "l"(b), "r"(descriptor), "r"(a_scales), "r"(b_scales), "r"(adds)
        : "memory");
  }
}

// `barrier` gets an arrival when everything that this thread has asked of the unit is done; what it read may
// then be overwritten.
__device__ __forceinline__ void ArriveWhenMultiplied(uint64_t* barrier) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
                   SharedAddress(barrier))
               : "memory");
}

}  // namespace dsv4::backend::cuda
