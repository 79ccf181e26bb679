// The clamped SwiGLU of one element, shared by swiglu and routed_experts.
#pragma once

#include <algorithm>
#include <cmath>

namespace dsv4::backend::reference {

// row_weight * silu(min(gate, limit)) * clamp(up, -limit, limit): the gate is clamped from above only, before
// silu.
inline double ClampedSwiglu(double gate, double up, double limit, double row_weight) {
  const double g = std::min(gate, limit);
  const double u = std::clamp(up, -limit, limit);
  return row_weight * (g / (1.0 + std::exp(-g)) * u);
}

}  // namespace dsv4::backend::reference
