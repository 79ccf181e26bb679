// The clamped SwiGLU of one element, shared by swiglu and routed_experts.
#pragma once

#include "backend/cuda/device/numeric/device_numbers.cuh"

namespace dsv4::backend::cuda {

// row_weight * silu(min(gate, limit)) * clamp(up, -limit, limit): the gate is clamped from above only, before
// silu. Comparisons as std::min and std::clamp make them, so that NaN goes the way it goes in the reference.
__device__ __forceinline__ double ClampedSwiglu(double gate, double up, double limit, double row_weight) {
  const double g = limit < gate ? limit : gate;
  const double u = up < -limit ? -limit : (limit < up ? limit : up);
  return row_weight * (g / (1.0 + exp(-g)) * u);
}

// Element i of the op swiglu, if it is one.
template <typename T>
__device__ __forceinline__ void SwigluElement(const T* gate, const T* up, const float* row_weights, T* y,
                                              int64_t i, int64_t count, int64_t width, float limit) {
  if (i >= count) return;
  const double weight = row_weights == nullptr ? 1.0 : static_cast<double>(row_weights[i / width]);
  Store(y, i, ClampedSwiglu(Load(gate, i), Load(up, i), static_cast<double>(limit), weight));
}

}  // namespace dsv4::backend::cuda
