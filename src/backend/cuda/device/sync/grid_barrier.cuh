// Barrier at which blocks of a grid wait for blocks of the same grid inside a launch. They must all run at
// once: DeviceQueue::RunsAtOnce says whether they can, and what was launched before them ends by itself. Some
// blocks arrive, all wait, all leave:
//
//   if (this block has something that others need) ArriveAtBarrier(barrier);
//   WaitForBlocks(barrier, blocks that arrive);
//   const uint32_t left = LeaveBarrier(barrier);
//   ...
//   CloseBarrier(barrier, left, blocks that leave);
#pragma once

#include <cstdint>

#include "backend/cuda/device/sync/grid_barrier.h"

namespace dsv4::backend::cuda {

// The first kThreads threads of a block, which are all that take part; 0: all that there are.
template <int kThreads>
__device__ __forceinline__ void MeetThreads() {
  if constexpr (kThreads == 0) {
    __syncthreads();
  } else {
    asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
  }
}
template <int kThreads>
__device__ __forceinline__ bool IsLastThread() {
  return threadIdx.x + 1 == (kThreads == 0 ? blockDim.x : static_cast<unsigned>(kThreads));
}

// Data that the block has written is there for those that wait. Called by all threads that take part.
template <int kThreads = 0>
__device__ __forceinline__ void ArriveAtBarrier(GridBarrier* barrier) {
  MeetThreads<kThreads>();
  if (threadIdx.x == 0) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(&barrier->arrived) : "memory");
  }
}

// Until `num_blocks` have arrived: what each wrote before is seen by all threads of this one.
template <int kThreads = 0>
__device__ __forceinline__ void WaitForBlocks(GridBarrier* barrier, uint32_t num_blocks) {
  if (threadIdx.x == 0) {
    uint32_t arrived;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(&barrier->arrived) : "memory");
    } while (arrived != num_blocks);
  }
  MeetThreads<kThreads>();
}

// This block waits no more. One thread asks how many have left before; only CloseBarrier wants the answer, so
// that no thread waits for it.
template <int kThreads = 0>
__device__ __forceinline__ uint32_t LeaveBarrier(GridBarrier* barrier) {
  uint32_t left = 0;
  if (IsLastThread<kThreads>()) {
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(left)
                 : "l"(&barrier->left)
                 : "memory");
  }
  return left;
}

// The last of num_blocks that left makes the barrier as it was, for the next launch.
template <int kThreads = 0>
__device__ __forceinline__ void CloseBarrier(GridBarrier* barrier, uint32_t left, uint32_t num_blocks) {
  if (IsLastThread<kThreads>() && left + 1 == num_blocks) {
    barrier->arrived = 0;
    barrier->left = 0;
  }
}

}  // namespace dsv4::backend::cuda
