// The CUDA backend: every op on one NVIDIA GPU of compute capability 9.0 (Hopper). docs/cuda-backend.md says how it is
// built and what it promises.
//
// Operands are device memory of the backend's own `Memory`; ops are queued on its stream and return before they are done.
// What only the device can see (an index outside its table) and what only the device can suffer (a launch that fails) is
// reported by the next call that waits for it: Memory::CopyToHost, or the op itself when `synchronous` is set.
//
// Numerics: the contracts' rounding points, all of them; sums of matrix products and attention in fp32 (exact products for
// bf16 operands), everything else in double as the reference. A row's result depends neither on the other rows of the
// batch nor on how a prompt is cut.
#pragma once

#include <string>
#include <vector>

#include "ops/op_table.h"

namespace dsv4::backend {

struct CudaOptions {
  int device = 0;
  // Every op waits for itself, so that a fault names the op that made it. DSV4_CUDA_SYNC=1 sets it from outside.
  bool synchronous = false;
};

struct CudaDeviceInfo {
  int index = 0;
  std::string name;
  int major = 0;  // Compute capability.
  int minor = 0;
  size_t total_bytes = 0;
};

// Devices the driver shows, the unfit included; empty without a driver.
std::vector<CudaDeviceInfo> CudaDevices();

// The name is "cuda" and the card's: "cuda (NVIDIA H200)". FailedPrecondition without a driver, without that device, or
// when the device is not of compute capability 9.0; the message says which it is.
Result<ops::Backend> MakeCudaBackend(const CudaOptions& options);

}  // namespace dsv4::backend
