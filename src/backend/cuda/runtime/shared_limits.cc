// A kernel's dynamic shared memory: its limit, raised once for each device and size, and what is left to L1.
#include "backend/cuda/runtime/shared_limits.h"

#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace dsv4::backend::cuda {
namespace {

std::mutex mutex;
std::map<std::pair<int, const void*>, size_t> allowed;
std::set<const void*> prefer_l1;

}  // namespace

cudaError_t AllowSharedBytes(int device, const void* kernel, size_t num_bytes) {
  const std::lock_guard lock(mutex);
  size_t& before = allowed[{device, kernel}];
  if (num_bytes <= before) return cudaSuccess;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(num_bytes));
  if (error == cudaSuccess && prefer_l1.contains(kernel)) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxL1);
  }
  if (error == cudaSuccess) before = num_bytes;
  return error;
}

void PreferL1(const void* kernel) {
  const std::lock_guard lock(mutex);
  prefer_l1.insert(kernel);
}

}  // namespace dsv4::backend::cuda
