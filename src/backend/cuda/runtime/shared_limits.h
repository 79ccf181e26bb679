// Limit of a kernel's launches on shared memory, and what is left to L1. The limit belongs to a kernel on a
// device, for all queues of the process, and the last call decides. A queue that asked for less would refuse
// the launches that another one has collected.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace dsv4::backend::cuda {

// Lets launches of `kernel` on `device`, which is the thread's, have `num_bytes` of dynamic shared memory, or what was allowed before where
// that is more. What its blocks do not ask for is L1's from then on. Otherwise the split of a SM's memory stays as the launch in front had it.
// Kernels that load weights through L1 then may have too few lines in flight. CUDA's error where a block cannot have so much. Thread-safe.
cudaError_t AllowSharedBytes(int device, const void* kernel, size_t num_bytes);

}  // namespace dsv4::backend::cuda
