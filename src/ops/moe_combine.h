// MoeCombine: y = round(routed + shared).
//   routed  [num_tokens, dim]  f32, contiguous: the sum over routed experts
//   shared  [num_tokens, dim]  bf16 or f32, contiguous: the shared expert's output; or null: 0, where `routed` has it already
//   y       [num_tokens, dim]  dtype of shared, or bf16 or f32, contiguous, may alias shared, and as f32 routed
// One rounding point: the store to y.
// Errors: InvalidArgument if dims or dtypes disagree. num_tokens == 0 does nothing.
// Source: release inference code, MoE.forward (model.md 8.3).
#pragma once

#include "ops/op_context.h"

namespace dsv4::ops {

struct MoeCombineArgs {
  TensorView routed;
  TensorView shared;
  TensorView y;
  DSV4_OPERANDS(routed, shared, y)
};

Status Validate(const MoeCombineArgs& args);

}  // namespace dsv4::ops
