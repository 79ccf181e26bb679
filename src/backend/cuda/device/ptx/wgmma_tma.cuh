// Hopper's tensor cores (wgmma) and its TMA in the forms that kernels here use. A warpgroup (four warps)
// multiplies 64 rows of A, held in registers, by up to 128 rows of B in shared memory. It works
// asynchronously: registers of A and of the sums are not touched between issue and wait.
#pragma once

#include <cstdint>

#include "backend/cuda/device/ptx/cp_async.cuh"
#include "backend/cuda/device/ptx/shared_address.cuh"

namespace dsv4::backend::cuda {

// --- Tensor cores ----------------------------------------------------------------------------------------------------

// Descriptor of B: rows of 128 bytes (64 columns of bf16), eight rows a kilobyte. The 16-byte pieces of a row
// are permuted: piece i of row r at i ^ r % 8. `address` is that of the first step's columns in shared
// memory, a kilobyte's beginning plus 32 bytes a step.
__device__ __forceinline__ uint64_t MatrixDescriptor(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kEightRows | (uint64_t{1} << 16) | ((address & 0x3FFFFU) >> 4);
}

// Descriptor of a B whose rows, of 64 columns each as above, are the steps' 16 terms, and whose columns are
// the result's: `address` is that of the first term, 64 columns more lie `block_bytes` further.
__device__ __forceinline__ uint64_t TransposedDescriptor(uint32_t address, uint32_t block_bytes) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kEightRows | (uint64_t{block_bytes >> 4} << 16) | ((address & 0x3FFFFU) >> 4);
}

// Ordinary stores to shared memory become visible to wgmma behind the next barrier of the block.
__device__ __forceinline__ void PublishToMatrixSteps() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void BeginMatrixSteps() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void CommitMatrixSteps() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until all but the last `kPending` groups of steps are done.
template <int kPending>
__device__ __forceinline__ void WaitForMatrixSteps() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

#define DSV4_EIGHT(i)                                                                         \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])

// One step of 16 columns: d += A B^T, or d = A B^T where `adds` is 0. A is as in mma.m16n8k16, 16 rows a
// warp, and so is d. Its four floats j are columns 8 j + 2 (lane % 4) and the next of rows lane / 4 and lane
// / 4 + 8.
// Both operands are bf16, or halves.
template <int kColumns, bool kHalves = false>
struct MatrixStep;

// Sums' registers by name, then those of A, the descriptor and `adds` by number.
#define DSV4_SUMS_4 "%0, %1, %2, %3"
#define DSV4_SUMS_8 DSV4_SUMS_4 ", %4, %5, %6, %7"
#define DSV4_SUMS_12 DSV4_SUMS_8 ", %8, %9, %10, %11"
#define DSV4_SUMS_16 DSV4_SUMS_12 ", %12, %13, %14, %15"
#define DSV4_SUMS_20 DSV4_SUMS_16 ", %16, %17, %18, %19"
#define DSV4_SUMS_24 DSV4_SUMS_20 ", %20, %21, %22, %23"
#define DSV4_SUMS_32 DSV4_SUMS_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define DSV4_SUMS_40 DSV4_SUMS_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define DSV4_SUMS_44 DSV4_SUMS_40 ", %40, %41, %42, %43"
#define DSV4_SUMS_48 DSV4_SUMS_44 ", %44, %45, %46, %47"
#define DSV4_SUMS_52 DSV4_SUMS_48 ", %48, %49, %50, %51"
#define DSV4_SUMS_56 DSV4_SUMS_52 ", %52, %53, %54, %55"
#define DSV4_SUMS_64 DSV4_SUMS_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define DSV4_FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define DSV4_SIXTEEN DSV4_EIGHT(0), DSV4_EIGHT(8)
#define DSV4_FORTY DSV4_SIXTEEN, DSV4_EIGHT(16), DSV4_EIGHT(24), DSV4_EIGHT(32)
#define DSV4_STEP_OF(type, columns, sums, a0, a1, a2, a3, b_at, adds_at, ...)                  \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #adds_at                                   \
               ", 0;\n"                                                                        \
               "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" sums \
               "}, "                                                                           \
               "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", p, 1, 1, 0;\n}"          \
               : __VA_ARGS__                                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds))
#define DSV4_STEP(columns, ...)                                                                             \
  template <bool kHalves>                                                                                   \
  struct MatrixStep<columns, kHalves> {                                                                     \
    static __device__ __forceinline__ void Add(float (&d)[columns / 2], const uint32_t (&a)[4], uint64_t b, \
                                               int adds) {                                                  \
      if constexpr (kHalves) {                                                                              \
        DSV4_STEP_OF("f16", columns, __VA_ARGS__);                                                          \
      } else {                                                                                              \
        DSV4_STEP_OF("bf16", columns, __VA_ARGS__);                                                         \
      }                                                                                                     \
    }                                                                                                       \
  }

DSV4_STEP(8, DSV4_SUMS_4, 4, 5, 6, 7, 8, 9, DSV4_FOUR(0));
DSV4_STEP(16, DSV4_SUMS_8, 8, 9, 10, 11, 12, 13, DSV4_EIGHT(0));
DSV4_STEP(24, DSV4_SUMS_12, 12, 13, 14, 15, 16, 17, DSV4_EIGHT(0), DSV4_FOUR(8));
DSV4_STEP(32, DSV4_SUMS_16, 16, 17, 18, 19, 20, 21, DSV4_SIXTEEN);
DSV4_STEP(40, DSV4_SUMS_20, 20, 21, 22, 23, 24, 25, DSV4_SIXTEEN, DSV4_FOUR(16));
DSV4_STEP(48, DSV4_SUMS_24, 24, 25, 26, 27, 28, 29, DSV4_SIXTEEN, DSV4_EIGHT(16));
DSV4_STEP(64, DSV4_SUMS_32, 32, 33, 34, 35, 36, 37, DSV4_SIXTEEN, DSV4_EIGHT(16), DSV4_EIGHT(24));
DSV4_STEP(80, DSV4_SUMS_40, 40, 41, 42, 43, 44, 45, DSV4_FORTY);
DSV4_STEP(88, DSV4_SUMS_44, 44, 45, 46, 47, 48, 49, DSV4_FORTY, DSV4_FOUR(40));
DSV4_STEP(96, DSV4_SUMS_48, 48, 49, 50, 51, 52, 53, DSV4_FORTY, DSV4_EIGHT(40));
DSV4_STEP(104, DSV4_SUMS_52, 52, 53, 54, 55, 56, 57, DSV4_FORTY, DSV4_EIGHT(40), DSV4_FOUR(48));
DSV4_STEP(112, DSV4_SUMS_56, 56, 57, 58, 59, 60, 61, DSV4_FORTY, DSV4_EIGHT(40), DSV4_EIGHT(48));
DSV4_STEP(128, DSV4_SUMS_64, 64, 65, 66, 67, 68, 69, DSV4_FORTY, DSV4_EIGHT(40), DSV4_EIGHT(48),
          DSV4_EIGHT(56));

#undef DSV4_STEP
#undef DSV4_STEP_OF
#undef DSV4_FORTY
#undef DSV4_SIXTEEN
#undef DSV4_FOUR
#undef DSV4_SUMS_64
#undef DSV4_SUMS_56
#undef DSV4_SUMS_52
#undef DSV4_SUMS_48
#undef DSV4_SUMS_44
#undef DSV4_SUMS_40
#undef DSV4_SUMS_32
#undef DSV4_SUMS_24
#undef DSV4_SUMS_20
#undef DSV4_SUMS_16
#undef DSV4_SUMS_12
#undef DSV4_SUMS_8
#undef DSV4_SUMS_4

// The same with A in shared memory, laid out as B is.
// kTransposed: B's rows are steps, d = A B; its descriptor is TransposedDescriptor's.
template <int kColumns, bool kTransposed = false>
struct SharedMatrixStep;

template <>
struct SharedMatrixStep<32> {
  static __device__ __forceinline__ void Add(float (&d)[16], uint64_t a, uint64_t b, int adds) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "%16, %17, p, 1, 1, 0, 0;\n}"
        : DSV4_EIGHT(0), DSV4_EIGHT(8)
        : "l"(a), "l"(b), "r"(adds));
  }
};

template <bool kTransposed>
struct SharedMatrixStep<64, kTransposed> {
  static __device__ __forceinline__ void Add(float (&d)[32], uint64_t a, uint64_t b, int adds) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1, 0, %35;\n}"
        : DSV4_EIGHT(0), DSV4_EIGHT(8), DSV4_EIGHT(16), DSV4_EIGHT(24)
        : "l"(a), "l"(b), "r"(adds), "n"(kTransposed ? 1 : 0));
  }
};

template <bool kTransposed>
struct SharedMatrixStep<128, kTransposed> {
  static __device__ __forceinline__ void Add(float (&d)[64], uint64_t a, uint64_t b, int adds) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, %67;\n}"
        : DSV4_EIGHT(0), DSV4_EIGHT(8), DSV4_EIGHT(16), DSV4_EIGHT(24), DSV4_EIGHT(32), DSV4_EIGHT(40),
          DSV4_EIGHT(48), DSV4_EIGHT(56)
        : "l"(a), "l"(b), "r"(adds), "n"(kTransposed ? 1 : 0));
  }
};

#undef DSV4_EIGHT

// Keeps the compiler from moving what reads or writes these registers across steps that are in flight.
template <int kCount>
__device__ __forceinline__ void FenceRegisters(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Register values are computed by now, not later when they are needed.
__device__ __forceinline__ void FenceRegisters(uint32_t (&a)[4][4]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

// A warpgroup's share of the registers: so many a thread from here on.
template <int kRegisters>
__device__ __forceinline__ void GiveUpRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// --- TMA -------------------------------------------------------------------------------------------------------------

// A slot in a ring, and the parity of the round.
template <int kSize>
struct RingPlace {
  int i = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next() {
    if (++i == kSize) {
      i = 0;
      parity ^= 1U;
    }
  }
};

// A barrier in shared memory: each phase ends when so many have arrived and the bytes that were announced
// have come.
__device__ __forceinline__ void InitBarrier(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(arrivals)
               : "memory");
}
// Barriers are seen by TMA; a block's threads meet behind this.
__device__ __forceinline__ void PublishBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void Arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}
// Once for a warp, all of which has come to this.
__device__ __forceinline__ void ArriveForWarp(uint64_t* barrier) {
  __syncwarp();
  asm volatile(
      "{\n.reg .pred p;\n"
      "elect.sync _|p, 0xFFFFFFFF;\n"
      "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(SharedAddress(barrier))
      : "memory");
}
__device__ __forceinline__ void ArriveTimes(uint64_t* barrier, uint32_t times) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(times)
               : "memory");
}
__device__ __forceinline__ void ArriveAndAnnounce(uint64_t* barrier, uint32_t num_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(num_bytes)
               : "memory");
}
// Until the phase of this parity has ended.
__device__ __forceinline__ void WaitForPhase(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra again;\n}" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}
// `num_bytes` (a multiple of 16, as are both addresses) to shared memory; `barrier` counts them.
__device__ __forceinline__ void CopyBulk(void* shared, const void* global, uint32_t num_bytes,
                                         uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          SharedAddress(shared)),
      "l"(global), "r"(num_bytes), "r"(SharedAddress(barrier))
      : "memory");
}
// The same with a policy of L2 (createpolicy).
__device__ __forceinline__ void CopyBulkBy(uint64_t policy, void* shared, const void* global,
                                           uint32_t num_bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], %4;" ::"r"(SharedAddress(shared)),
      "l"(global), "r"(num_bytes), "r"(SharedAddress(barrier)), "l"(policy)
      : "memory");
}

// CopyBulk to as many blocks of the cluster as `blocks` has bits, to the same address of each. The barrier of
// each, at the same address too, counts the bytes that it gets.
__device__ __forceinline__ void CopyBulkToCluster(void* shared, const void* global, uint32_t num_bytes,
                                                  uint64_t* barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, "
      "[%3], %4;" ::"r"(SharedAddress(shared)),
      "l"(global), "r"(num_bytes), "r"(SharedAddress(barrier)), "h"(blocks)
      : "memory");
}
// Address of the same location in block `rank` of the cluster.
__device__ __forceinline__ uint32_t AddressInCluster(const void* shared, uint32_t rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(SharedAddress(shared)), "r"(rank));
  return there;
}
// Arrives at the barrier that lies there.
__device__ __forceinline__ void ArriveThere(uint32_t address) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
}
__device__ __forceinline__ void ArriveInCluster(uint64_t* barrier, uint32_t rank) {
  ArriveThere(AddressInCluster(barrier, rank));
}
// All threads of the cluster's blocks meet; what they wrote before is seen behind it.
__device__ __forceinline__ void MeetInCluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// --- Copies of a thread's own ----------------------------------------------------------------------------------------

// 16 or 4 bytes to shared memory, zeros where `exists` is false; the thread that copies waits, and only it
// may read without a barrier.
__device__ __forceinline__ void CopyAsync16(uint32_t shared, const void* global, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(exists ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void CopyAsync4(uint32_t shared, const void* global, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(exists ? 4 : 0)
               : "memory");
}
// Arrives once all that this thread has asked for so far is there; one of the barrier's arrivals. What came
// are ordinary writes: the waiting thread publishes them to matrix steps (PublishToMatrixSteps).
__device__ __forceinline__ void ArriveWhenCopied(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(SharedAddress(barrier))
               : "memory");
}

}  // namespace dsv4::backend::cuda
