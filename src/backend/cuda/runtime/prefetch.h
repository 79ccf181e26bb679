// Asks for memory to be brought into the L2 cache.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "backend/cuda/runtime/prefetch_plan.h"

namespace dsv4::backend::cuda {

// Queues it on `stream`, in as many launches as the ranges need. Ranges begin and end at multiples of 16
// bytes.
cudaError_t LaunchPrefetch(std::span<const ReadRange> ranges, cudaStream_t stream);

}  // namespace dsv4::backend::cuda
