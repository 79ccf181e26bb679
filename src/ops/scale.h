// Scale: y = round(x * factor), element by element; used for the indexer's head weights.
//   x, y  any equal shape, contiguous, same dtype (bf16 or f32), may be the same memory
// One rounding point: the store to y. The product is taken in fp32.
// Errors: InvalidArgument if shapes or dtypes disagree. An empty x does nothing.
#pragma once

#include "ops/op_context.h"

namespace dsv4::ops {

struct ScaleArgs {
  TensorView x;
  TensorView y;
  float factor = 1.0F;
  DSV4_OPERANDS(x, y)
};

Status Validate(const ScaleArgs& args);

}  // namespace dsv4::ops
