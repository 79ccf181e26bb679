// How kernels follow each other. A kernel may be started while the one in front of it still runs
// (launch_list.h). So every kernel first waits for that one to end. Before that it may only read memory that
// no kernel in flight writes: weights. Code for older devices is launched when the one in front has ended
// (DeviceQueue::Create), and waits for nothing.
#pragma once

#include "backend/cuda/device/ptx/generation.cuh"

namespace dsv4::backend::cuda {

// The next kernel may be started.
__device__ __forceinline__ void LetNextKernelStart() {
  if constexpr (kIsHopperOrLater) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// Everything that was launched before has ended, and its writes are seen, by TMA too. A fence of all memory
// and not of global memory would be a membar, which waits for what this kernel has asked for itself.
__device__ __forceinline__ void WaitForKernelsBefore() {
  if constexpr (kIsHopperOrLater)
    asm volatile("griddepcontrol.wait;\nfence.proxy.async.global;" ::: "memory");
}

__device__ __forceinline__ void BeginKernel() {
  LetNextKernelStart();
  WaitForKernelsBefore();
}

}  // namespace dsv4::backend::cuda
