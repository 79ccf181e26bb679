// bench/must.h, and calls of the runtime.
#pragma once

#include <cuda_runtime_api.h>

#include "bench/must.h"

namespace dsv4::bench {

inline void Must(cudaError_t error) {
  if (error != cudaSuccess) Die(cudaGetErrorString(error));
}

}  // namespace dsv4::bench
