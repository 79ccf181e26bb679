// The address of something in shared memory, as instructions on it take it.
#pragma once

#include <cstdint>

namespace dsv4::backend::cuda {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

}  // namespace dsv4::backend::cuda
