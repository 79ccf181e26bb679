// Launches of small ops that the op behind them may take over (DeviceQueue::LaunchInPlaceOf): what it has to know to do their work too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace dsv4::backend::cuda {

// moe_combine, for hc_post: y = routed + shared, `count` elements each.
struct OpenCombine {
  uint64_t launch = 0;
  const float* routed = nullptr;
  const void* shared = nullptr;  // May be y.
  void* y = nullptr;
  int64_t count = 0;
  DType dtype = DType::kBF16;  // Of shared and y.
};

// swiglu, for router: the two do not depend on each other.
struct OpenSwiglu {
  uint64_t launch = 0;
  const void* gate = nullptr;
  const void* up = nullptr;
  const float* row_weights = nullptr;  // Null: 1.
  void* y = nullptr;                   // May be gate or up.
  int64_t count = 0;
  int64_t width = 0;
  float limit = 0.0F;
  DType dtype = DType::kBF16;
};

// Whether [a, a + a_bytes) and [b, b + b_bytes) have a byte in common.
inline bool BytesOverlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes) {
  const auto* const a_begin = static_cast<const std::byte*>(a);
  const auto* const b_begin = static_cast<const std::byte*>(b);
  return a_begin < b_begin + b_bytes && b_begin < a_begin + a_bytes;
}

}  // namespace dsv4::backend::cuda
