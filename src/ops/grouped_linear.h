// GroupedLinear: the output projection's first half, one matrix per group of heads.
//   x       [num_tokens, num_groups, group_width]               bf16 or f32, contiguous
//   weight  [num_groups * rank, group_width], group-major rows  any stored format; activation must be kNone: the
//           release expands wo_a to bf16 and leaves its activations alone
//   y       [num_tokens, num_groups, rank]                      dtype of x, contiguous, no overlap with x
//   y[t, g, r] = round(sum_k x[t, g, k] * weight[g * rank + r, k])
// One rounding point: the store to y. Sums in fp32 or wider.
// Errors: InvalidArgument if dims, dtypes or the weight's activation disagree. num_tokens == 0 does nothing.
// Source: release inference code, Attention.forward, einsum over wo_a (model.md 5.5).
#pragma once

#include "formats/weight.h"
#include "ops/op_context.h"

namespace dsv4::ops {

struct GroupedLinearArgs {
  TensorView x;
  const Weight* weight = nullptr;
  TensorView y;
  DSV4_OPERANDS(x, weight, y)
};

Status Validate(const GroupedLinearArgs& args);

}  // namespace dsv4::ops
