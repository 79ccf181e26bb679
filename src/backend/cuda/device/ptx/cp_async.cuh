// Copies to shared memory that a thread has in flight.
#pragma once

#include "backend/cuda/device/ptx/shared_address.cuh"

namespace dsv4::backend::cuda {

// 16 bytes, past the first-level cache.
__device__ __forceinline__ void CopyAsync(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddress(shared)), "l"(global)
               : "memory");
}
// Four bytes.
__device__ __forceinline__ void CopyWordAsync(float* shared, const float* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(SharedAddress(shared)), "l"(global)
               : "memory");
}

// Copies asked for since the last time form a group, which can be waited for.
__device__ __forceinline__ void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all but the last `kPending` groups are there.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace dsv4::backend::cuda
