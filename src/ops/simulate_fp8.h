// SimulateFp8: rounds the first `num_columns` elements of every row to the e4m3 grid and back, in place
// (SIM8).
//   x            [num_rows, width]  bf16 or f32, last dim contiguous
//   num_columns  <= width, a multiple of `group`
//   group        columns that share a power-of-two scale, 64 for cache rows
// Per group: s = 2^ceil(log2(max(max|x|, 1e-4) * fl32(1/448))), x = e4m3(clamp(x / s, -448, 448)) * s. The
// result is exact in bf16. Columns from num_columns on (the rotary part of a cache row) are left as they are.
// Errors: InvalidArgument if dims or dtypes disagree. num_rows == 0 does nothing.
// Source: release inference code, act_quant in place (model.md 2.3).
#pragma once

#include "ops/op_context.h"

namespace dsv4::ops {

struct SimulateFp8Args {
  TensorView x;
  int64_t num_columns = 0;
  int64_t group = 64;
  DSV4_OPERANDS(x)
};

Status Validate(const SimulateFp8Args& args);

}  // namespace dsv4::ops
