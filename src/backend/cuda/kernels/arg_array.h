// ArgArray: an array as a kernel argument: a few elements inside the argument, many behind a device pointer.
#pragma once

#include <cstdint>

namespace dsv4::backend::cuda {

template <typename T, int kInline>
struct ArgArray {
  const T* many = nullptr;
  int64_t size = 0;
  T few[kInline];

#ifdef __CUDACC__
  __device__ const T& operator[](int64_t i) const { return many != nullptr ? many[i] : few[i]; }
#endif
};

}  // namespace dsv4::backend::cuda
