// Limit of a kernel's launches on shared memory. The limit belongs to a kernel on a device, for all queues of
// the process, and the last call decides. A queue that asked for less would refuse the launches that another
// one has collected.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace dsv4::backend::cuda {

// Lets launches of `kernel` on `device`, which is the thread's, have `num_bytes` of dynamic shared memory, or what was allowed before where
// that is more. CUDA's error where a block cannot have so much. Thread-safe.
cudaError_t AllowSharedBytes(int device, const void* kernel, size_t num_bytes);

}  // namespace dsv4::backend::cuda
