// How blocks of a cluster tell each other numbers. The cluster's own barrier with release and acquire would
// wait for everything that a thread has in flight, to global memory too. Here stores to other blocks count
// themselves at the receiver.
#pragma once

#include <cstdint>

#include "backend/cuda/device/ptx/shared_address.cuh"

namespace dsv4::backend::cuda {

// A barrier in shared memory, for one use, that waits for so many bytes from SendTo. By one
// thread; other blocks may send behind WaitForCluster.
__device__ __forceinline__ void InitReceipts(uint64_t* barrier, uint32_t num_bytes) {
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], 1;\n"
      "fence.mbarrier_init.release.cluster;\n"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(num_bytes)
      : "memory");
}
// To the same addresses of block `rank` of the cluster, which may be this one.
__device__ __forceinline__ void SendTo(double* place, double value, uint64_t* barrier, int rank) {
  asm volatile(
      "{\n.reg .u32 place, barrier;\n"
      "mapa.shared::cluster.u32 place, %0, %3;\n"
      "mapa.shared::cluster.u32 barrier, %2, %3;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f64 [place], %1, [barrier];\n}" ::"r"(
          SharedAddress(place)),
      "d"(value), "r"(SharedAddress(barrier)), "r"(rank)
      : "memory");
}
__device__ __forceinline__ void SendTo(float* place, float value, uint64_t* barrier, int rank) {
  asm volatile(
      "{\n.reg .u32 place, barrier;\n"
      "mapa.shared::cluster.u32 place, %0, %3;\n"
      "mapa.shared::cluster.u32 barrier, %2, %3;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [place], %1, [barrier];\n}" ::"r"(
          SharedAddress(place)),
      "f"(value), "r"(SharedAddress(barrier)), "r"(rank)
      : "memory");
}
__device__ __forceinline__ void SendTo(uint32_t* place, uint32_t value, uint64_t* barrier, int rank) {
  asm volatile(
      "{\n.reg .u32 place, barrier;\n"
      "mapa.shared::cluster.u32 place, %0, %3;\n"
      "mapa.shared::cluster.u32 barrier, %2, %3;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [place], %1, [barrier];\n}" ::"r"(
          SharedAddress(place)),
      "r"(value), "r"(SharedAddress(barrier)), "r"(rank)
      : "memory");
}
__device__ __forceinline__ void WaitForReceipts(uint64_t* barrier) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0;\n"
      "@!p bra again;\n}" ::"r"(SharedAddress(barrier))
      : "memory");
}

// The cluster's barrier in halves, for all threads: all blocks have begun, and InitReceipts before the
// arrival is done.
__device__ __forceinline__ void ArriveAtClusterRelaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
// Reads of other blocks' memory by this thread are done when they are through; waits for what it has stored,
// too.
__device__ __forceinline__ void ArriveAtCluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void WaitForCluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

}  // namespace dsv4::backend::cuda
