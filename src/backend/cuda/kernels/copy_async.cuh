// Copies to shared memory that a thread has under way.
#pragma once

namespace dsv4::backend::cuda {

// Those asked for since the last time are a group, which can be waited for.
__device__ __forceinline__ void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all but the last `kPending` groups are there.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace dsv4::backend::cuda
