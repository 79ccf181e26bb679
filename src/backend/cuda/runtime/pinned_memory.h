// Memory of the host that kernels of the queue's device read and write, at the same addresses.
#pragma once

#include "backend/cuda/runtime/device_queue.h"
#include "base/parallel.h"

namespace dsv4::backend::cuda {

// Contents unspecified; the buffer keeps the queue alive. ResourceExhausted says how much was asked for:
// memory that cannot be pinned has no substitute here.
Result<Buffer> AllocatePinned(DeviceQueue& queue, size_t num_bytes);

// The same of very many bytes: in huge pages where the kernel has them, which `threads` touch side by side.
// The driver by itself takes its time for each page.
Result<Buffer> AllocatePinned(DeviceQueue& queue, size_t num_bytes, ThreadPool& threads);

}  // namespace dsv4::backend::cuda
