// The address of something in shared memory, as instructions on it take it.
#pragma once

#include <cstdint>

namespace dsv4::backend::cuda {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// The same memory by an address that stays in a register. By its name a loop would compute it anew in every
// turn, from the block's rank in its cluster. By whole warps.
template <typename T>
__device__ __forceinline__ T* KeptShared(T* p) {
  return static_cast<T*>(__cvta_shared_to_generic(__shfl_sync(0xFFFFFFFFU, SharedAddress(p), 0)));
}

}  // namespace dsv4::backend::cuda
