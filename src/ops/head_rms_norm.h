// HeadRmsNorm: the unweighted norm of every query head, y = x * rsqrt(mean(x^2) + eps) over head_dim.
//   x, y  [num_tokens, num_heads, head_dim]  same dtype (bf16 or f32), contiguous, may be the same memory
//   eps   > 0, from config rms_norm_eps
// Rounding points: with bf16, the release runs this as separate bf16 tensor ops. The square, the mean (its
// sum in fp32 or wider), mean + eps, rsqrt and the product are each rounded to bf16. A fast backend may keep
// fp32 statistics and round once; it says so and is tested against a bound of two bf16 steps. With f32 there
// is no rounding.
// Errors: InvalidArgument if shapes or dtypes disagree. num_tokens == 0 does nothing.
// Source: release inference code, Attention.forward (model.md 5.1).
#pragma once

#include "ops/op_context.h"

namespace dsv4::ops {

struct HeadRmsNormArgs {
  TensorView x;
  TensorView y;
  float eps = 0.0F;
  DSV4_OPERANDS(x, y)
};

Status Validate(const HeadRmsNormArgs& args);

}  // namespace dsv4::ops
