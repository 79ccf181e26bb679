// linear and grouped_linear for many tokens, on tensor cores (gemm_wgmma_tiles.cuh).
#pragma once

#include <span>

#include "backend/cuda/lowering/work/linear.h"
#include "backend/cuda/runtime/launch_context.h"
#include "backend/cuda/weights/device_weight.h"

namespace dsv4::backend::cuda {

// One matrix, or one for a group of columns of x. Rows [g, g + 1) * rows_per_group of the weight multiply
// columns [g, g + 1) * weight.cols of x. Results go to columns [g, g + 1) * rows_per_group of y.
struct GemmArgs {
  DeviceWeight weight;
  int64_t num_groups = 1;
  TensorView x;  // [num_tokens, num_groups * cols], rows x_stride apart
  int64_t x_stride = 0;
  TensorView y;  // [num_tokens, num_groups * rows_per_group], rows y_stride apart
  int64_t y_stride = 0;
};

Status GemmWgmma(LaunchContext& context, const GemmArgs& args);

// Linears of the same bf16 activations that ShareWgmma, up to kMaxFusedMatrices of them, in one launch.
Status LaunchGemmWgmma(LaunchContext& context, std::span<const LinearWork* const> linears);

}  // namespace dsv4::backend::cuda
