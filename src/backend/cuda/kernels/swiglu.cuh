// The clamped SwiGLU of one element, shared by swiglu and routed_experts.
#pragma once

namespace dsv4::backend::cuda {

// row_weight * silu(min(gate, limit)) * clamp(up, -limit, limit): the gate is clamped from above only, before silu.
// Comparisons as std::min and std::clamp make them, so that NaN goes the way it goes in the reference.
__device__ __forceinline__ double ClampedSwiglu(double gate, double up, double limit, double row_weight) {
  const double g = limit < gate ? limit : gate;
  const double u = up < -limit ? -limit : (limit < up ? limit : up);
  return row_weight * (g / (1.0 + exp(-g)) * u);
}

}  // namespace dsv4::backend::cuda
