// DeviceArray: an array in device memory as a kernel argument.
#pragma once

#include <cstdint>

namespace dsv4::backend::cuda {

template <typename T>
struct DeviceArray {
  const T* data = nullptr;
  int64_t size = 0;

#ifdef __CUDACC__
  __device__ const T& operator[](int64_t i) const { return data[i]; }
#endif
};

}  // namespace dsv4::backend::cuda
