// HadamardFp4: what the indexer does to its queries and keys, in place: a Walsh-Hadamard rotation of every row, then
// rounding to the e2m1 grid and back (SIM4).
//   x  [num_rows, width]  bf16 or f32, contiguous; width a power of two and a multiple of 32
// Two rounding points: y = round(H x * width^-0.5), with H in natural (Sylvester) order and sums in fp32 or wider, to
// x's dtype; then per 32 columns
//   s = 2^ceil(log2(max(max|y|, 6 * 2^-126) * fl32(1/6))), x = e2m1(clamp(y / s, -6, 6)) * s, exact in bf16.
// Errors: InvalidArgument if dims or dtypes disagree. num_rows == 0 does nothing.
// Source: release inference code, rotate_activation and fp4_act_quant (model.md 2.3, 2.8 and 7).
#pragma once

#include "ops/op_context.h"

namespace dsv4::ops {

inline constexpr int64_t kIndexerFp4Group = 32;

struct HadamardFp4Args {
  TensorView x;
  DSV4_OPERANDS(x)
};

Status Validate(const HadamardFp4Args& args);

}  // namespace dsv4::ops
