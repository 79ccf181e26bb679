// Which code of this program the current device runs.
#pragma once

#include <cuda_runtime_api.h>

namespace dsv4::backend::cuda {

// The compute capability that it was compiled for, 90 for 9.0.
cudaError_t FindCodeCapability(int* capability);

}  // namespace dsv4::backend::cuda
