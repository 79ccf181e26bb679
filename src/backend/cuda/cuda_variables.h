// Environment variables of the CUDA backend (docs/environment-variables.md).
#pragma once

#include <cstddef>

#include "backend/cuda/block_scaled_mode.h"
#include "backend/cuda/fp8_products.h"
#include "base/status.h"

namespace dsv4::backend {

struct CudaVariables {
  bool synchronous = false;                                          // DSV4_CUDA_SYNC=1
  bool explain = false;                                              // DSV4_CUDA_EXPLAIN=1
  bool graphs = true;                                                // DSV4_CUDA_GRAPHS=0
  bool overlap = true;                                               // DSV4_CUDA_OVERLAP=0
  bool replay = true;                                                // DSV4_CUDA_REPLAY=0
  bool check_replays = false;                                        // DSV4_CUDA_REPLAY=check
  bool packed_exchange = true;                                       // DSV4_CUDA_PACKED_EXCHANGE=0
  bool share_devices = false;                                        // DSV4_CUDA_SHARE_DEVICES=1
  cuda::BlockScaledMode block_scaled = cuda::BlockScaledMode::kOff;  // DSV4_CUDA_BLOCK_SCALED=fp8 or fp4
  cuda::Fp8Products fp8_products = cuda::Fp8Products::kOff;          // DSV4_CUDA_FP8_PRODUCTS=many or all
  size_t most_shared_bytes = 0;                                      // DSV4_CUDA_SHARED_KB; 0 bounds nothing.
};

// InvalidArgument names the variable, its value and the values that it takes. An empty one is as none. A build without the backend reads
// them too.
Result<CudaVariables> ReadCudaVariables();

// DSV4_CUDA_SHARE_DEVICES=1: a machine's ranks take its devices in turn, so that more ranks than devices can
// be checked. Processes on one device run one after the other, some milliseconds each, and every exchange
// waits for all: the same results, slowly. Peers only.
bool DevicesAreShared();

}  // namespace dsv4::backend
