// How blocks of a cluster read what others keep in shared memory: it is announced by barriers, and stays
// until all have read it.
#pragma once

#include <cstdint>

#include "backend/cuda/device/sync/cluster_barrier.cuh"

namespace dsv4::backend::cuda {

// An arrival at the same barrier of block `rank`. A thread that waits there by WaitForReceipts sees what this
// thread wrote before, and what threads wrote that it has met since.
__device__ __forceinline__ void ArriveAtBlock(uint64_t* barrier, int rank) {
  asm volatile(
      "{\n.reg .u32 barrier;\n"
      "mapa.shared::cluster.u32 barrier, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [barrier];\n}" ::"r"(SharedAddress(barrier)),
      "r"(rank)
      : "memory");
}
// Address in block `rank` of a location of this block's shared memory, for loads from there.
__device__ __forceinline__ uint32_t AddressInBlock(uint32_t address, int rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
__device__ __forceinline__ void LoadFromBlock(uint32_t (&words)[4], uint32_t address) {
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ float LoadFromBlock(uint32_t address) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

}  // namespace dsv4::backend::cuda
