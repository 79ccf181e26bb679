// Swiglu: y = round(row_weight * silu(min(gate, limit)) * clamp(up, -limit, limit)).
//   gate, up     [num_tokens, width]  bf16 or f32, contiguous
//   row_weights  [num_tokens]         f32 or null (= 1): the routing weight, applied before w2
//   limit        > 0; +infinity: no clamp. The gate is clamped from above only.
//   y            [num_tokens, width]  dtype of gate, contiguous, may alias gate or up
// In fp32 or wider. One rounding point: the store to y.
// Errors: InvalidArgument if dims or dtypes disagree or limit is not positive. num_tokens == 0 does nothing.
// Source: release inference code, Expert.forward (model.md 8.2).
#pragma once

#include "ops/op_context.h"

namespace dsv4::ops {

struct SwigluArgs {
  TensorView gate;
  TensorView up;
  TensorView row_weights;  // May be null.
  TensorView y;
  float limit = 0.0F;
  DSV4_OPERANDS(gate, up, row_weights, y)
};

Status Validate(const SwigluArgs& args);

}  // namespace dsv4::ops
