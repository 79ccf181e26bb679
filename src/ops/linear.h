// Linear: y = round(quant(x) W^T).
//   x       [num_tokens, in_features]    bf16 or f32, last dim contiguous
//   weight  [out_features, in_features]  any stored format (formats/weight.h); weight->activation says how x is rounded
//           first
//   y       [num_tokens, out_features]   bf16 or f32, last dim contiguous, no overlap with x
// Rounding points: x per weight->activation (per row and ActivationGroup columns, model.md 2.2; the last
// group may be shorter), and the store to y. Sums in fp32 or wider; the order is free, but the result for a
// row never depends on the other rows of the batch.
// Errors: InvalidArgument if dims, dtypes, strides or the weight's scale layout disagree. num_tokens == 0
// does nothing.
// Source: release inference code, linear() and class Linear (model.md 2.4 to 2.6).
#pragma once

#include "formats/weight.h"
#include "ops/op_context.h"

namespace dsv4::ops {

struct LinearArgs {
  TensorView x;
  const Weight* weight = nullptr;
  TensorView y;
  DSV4_OPERANDS(x, weight, y)
};

Status Validate(const LinearArgs& args);

}  // namespace dsv4::ops
