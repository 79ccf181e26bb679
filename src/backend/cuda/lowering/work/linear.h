// Work of linear, grouped_linear and routed_experts of few tokens, as they record it and as kernels are told
// it.
#pragma once

#include <cstdint>

#include "backend/cuda/lowering/select/linear.h"
#include "backend/cuda/lowering/work/hyper_connection.h"
#include "backend/cuda/weights/device_weight.h"

namespace dsv4::backend::cuda {

// linear or grouped_linear by gemv_stream, gemm_splitk_wgmma or gemm_wgmma: group g multiplies rows [g, g + 1) *
// rows_per_group of the weight with its own slice of x.
struct LinearWork {
  LinearPath path = LinearPath::kGemvStream;
  bool either = false;  // gemm_splitk_wgmma and gemm_wgmma take it; `path` is the choice for it alone.
  DeviceWeight weight;
  const uint16_t* x = nullptr;  // bf16
  int64_t x_stride = 0;         // Between tokens,
  int64_t x_group_stride = 0;   // between groups.
  void* y = nullptr;
  int64_t y_stride = 0;
  int64_t y_group_stride = 0;
  bool y_is_bf16 = false;
  int64_t rows_per_group = 0;
  int64_t num_groups = 1;
  int64_t num_tokens = 0;
  // Mix of the hc_pre in front, which leaves it to this launch.
  HcMixWork mix = {};
};

// routed_experts of FP4 by gemv_joint.
struct JointExpertsWork {
  DeviceWeight w1;  // Weights of the first expert; the others are like it.
  DeviceWeight w2;
  const DeviceWeight* weights;  // Device memory: w1, w3, w2 of every expert.
  const int32_t* indices;       // [num_tokens, top_k]
  const float* routing;         // [num_tokens, top_k]
  const uint16_t* x;            // [num_tokens, dim]
  float* y;                     // [num_tokens, dim]
  int num_tokens;
  int num_experts;
  int top_k;
  float limit;
};

}  // namespace dsv4::backend::cuda
