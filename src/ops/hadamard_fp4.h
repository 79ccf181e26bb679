// HadamardFp4: rounds rows to the e2m1 grid and back (SIM4), in place. V4's indexer rotates its queries and
// keys before.
//
//   x       [num_rows, width]  bf16 or f32, contiguous; width a multiple of `group`. A power of two where rows are rotated.
//   rotate  whether y = round(H x * width^-0.5) to x's dtype, with H in natural (Sylvester) order and sums in fp32 or wider; else y = x
//   group   columns that share a scale
//   scale   the grid of scales, of a group:
//     kE8m0   s = 2^ceil(log2(max(max|y|, 6 * 2^-126) * fl32(1/6)))
//     kE4m3   s = e4m3(min(max(max|y|, 6 * 2^-9) / 6, 448))
// Then x = e2m1(clamp(y / s, -6, 6)) * s, exact in bf16, with the division in fp32.
// Errors: InvalidArgument if dims or dtypes disagree. num_rows == 0 does nothing.
// Source: release inference code, rotate_activation and fp4_act_quant (model.md 2.3, 2.8 and 7); without a
// rotation V4.1's index rows, and with e4m3 scales its entries.
#pragma once

#include "ops/op_context.h"
#include "tensor/cache_format.h"

namespace dsv4::ops {

inline constexpr int64_t kIndexerFp4Group = 32;

struct HadamardFp4Args {
  TensorView x;
  bool rotate = true;
  int64_t group = kIndexerFp4Group;
  CacheScale scale = CacheScale::kE8m0;
  DSV4_OPERANDS(x)
};

Status Validate(const HadamardFp4Args& args);

}  // namespace dsv4::ops
