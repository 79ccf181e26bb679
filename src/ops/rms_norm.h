// RmsNorm: y = round(x * rsqrt(mean(x^2) + eps) * weight), per row.
//   x       [num_rows, dim]  bf16 or f32, last dim contiguous, may alias y
//   weight  [dim]            f32
//   y       [num_rows, dim]  bf16 or f32
//   eps     > 0, from config rms_norm_eps
// Sums in fp32 or wider. One rounding point: the store to y.
// Errors: InvalidArgument if ranks, dims or dtypes disagree. num_rows == 0 does nothing.
// Source: release inference code, class RMSNorm (model.md 2.1).
#pragma once

#include "ops/op_context.h"

namespace dsv4::ops {

struct RmsNormArgs {
  TensorView x;
  TensorView weight;
  TensorView y;
  float eps = 0.0F;
  DSV4_OPERANDS(x, weight, y)
};

Status Validate(const RmsNormArgs& args);

}  // namespace dsv4::ops
