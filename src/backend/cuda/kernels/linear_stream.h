// linear and grouped_linear of a few tokens: kernels made for reading weights (matmul_stream.cuh).
#pragma once

#include "backend/cuda/cuda_context.h"
#include "backend/cuda/kernels/device_weight.h"
#include "ops/rms_norm.h"

namespace dsv4::backend::cuda {

// Group g multiplies rows [g, g + 1) * rows_per_group of the weight with its own slice of x.
struct StreamLinearArgs {
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

// Whether tokens are few enough and activations lie as these kernels want them.
bool CanStreamLinear(const DeviceWeight& weight, int64_t rows_per_group, const TensorView& x,
                     int64_t num_tokens, int64_t x_stride);

// Joins the last launch if that is one of the same activations, or gives this one's.
void StreamLinear(CudaContext& context, const StreamLinearArgs& args);

// Whether the norm of one row, in place, has become part of the last launch, which gives the row; linears of what it leaves join both.
bool NormJoinsLinear(CudaContext& context, const ops::RmsNormArgs& args);

}  // namespace dsv4::backend::cuda
