// linear and grouped_linear of a few tokens: kernels made for reading weights (gemv_tiles.cuh).
#pragma once

#include "backend/cuda/runtime/cuda_context.h"
#include "backend/cuda/weights/device_weight.h"

namespace dsv4::backend::cuda {

// Group g multiplies rows [g, g + 1) * rows_per_group of the weight with its own slice of x.
struct GemvArgs {
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
};

// For shapes that ChooseLinear gives to it.
void GemvStream(CudaContext& context, const GemvArgs& args);

}  // namespace dsv4::backend::cuda
