// Kernel that reports the capability it was compiled for, so that features are those of the running code.
#include <cuda_runtime_api.h>

#include "backend/cuda/runtime/device_code.h"

namespace dsv4::backend::cuda {
namespace {

// Never launched: it has code for what all others have code for.
__global__ void DeviceCodeKernel() {}

}  // namespace

cudaError_t FindCodeCapability(int* capability) {
  cudaFuncAttributes attributes = {};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, DeviceCodeKernel);
  *capability = attributes.ptxVersion;
  return error;
}

}  // namespace dsv4::backend::cuda
