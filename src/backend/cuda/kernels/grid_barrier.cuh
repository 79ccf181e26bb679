// Where all blocks of a grid, or of a row of one, meet inside a launch. They must all run at once: DeviceQueue::RunsAtOnce
// says whether they can, and what was launched before them ends by itself.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/grid_barrier.h"

namespace dsv4::backend::cuda {

// What the block has written is there for the others. Called by all threads of a block; thread 0 gets what WaitForBlocks wants.
__device__ __forceinline__ uint32_t ArriveAtBarrier(GridBarrier* barrier, uint32_t num_blocks) {
  __syncthreads();
  uint32_t round = 0;
  if (threadIdx.x == 0) {
    // Cannot change before this block has come.
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(round) : "l"(&barrier->round) : "memory");
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(&barrier->arrived)
                 : "memory");
    if (before + 1 == num_blocks) {
      asm volatile("st.relaxed.gpu.global.u32 [%0], 0;" ::"l"(&barrier->arrived) : "memory");
      asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(&barrier->round), "r"(round + 1) : "memory");
    }
  }
  return round;
}

// Until all blocks have arrived: what each wrote before is seen by all threads of this one.
__device__ __forceinline__ void WaitForBlocks(GridBarrier* barrier, uint32_t round) {
  if (threadIdx.x == 0) {
    uint32_t now;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(&barrier->round) : "memory");
    } while (now == round);
  }
  __syncthreads();
}

}  // namespace dsv4::backend::cuda
