// A kernel's dynamic shared memory: its limit, raised once for each device and size. The rest is L1's.
#include "backend/cuda/runtime/shared_limits.h"

#include <map>
#include <mutex>
#include <utility>

namespace dsv4::backend::cuda {

cudaError_t AllowSharedBytes(int device, const void* kernel, size_t num_bytes) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, size_t> allowed;
  const std::lock_guard lock(mutex);
  size_t& before = allowed[{device, kernel}];
  if (num_bytes <= before) return cudaSuccess;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(num_bytes));
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxL1);
  }
  if (error == cudaSuccess) before = num_bytes;
  return error;
}

}  // namespace dsv4::backend::cuda
