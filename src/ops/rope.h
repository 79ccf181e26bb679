// Rope: rotates interleaved pairs of the last `2 * num_frequencies` elements of every row, in place.
//   x            [num_tokens, num_heads, width]  bf16 or f32, contiguous
//   positions    [num_tokens]                    i32, >= 0
//   frequencies  [num_frequencies]               f32, the layer's table (model/config/rope_table.h);
//                2 * num_frequencies <= width
//   inverse      negates the sine
// The angle is the single fp32 product fl32(position) * frequency, then accurate cos and sin (positions reach
// 1e6, so full range reduction). Pair i is elements 2i and 2i + 1 of the rotated slice:
//   x'[2i] = x[2i] cos - x[2i+1] sin,  x'[2i+1] = x[2i] sin + x[2i+1] cos, in fp32 or wider.
// One rounding point: the store to x.
// Errors: InvalidArgument if shapes or dtypes disagree, or names a negative position. num_tokens == 0 does
// nothing.
// Source: release inference code, apply_rotary_emb (model.md 2.7 and 9).
#pragma once

#include "ops/op_context.h"

namespace dsv4::ops {

struct RopeArgs {
  TensorView x;
  TensorView positions;
  TensorView frequencies;
  bool inverse = false;
  DSV4_OPERANDS(x, frequencies, positions)
};

Status Validate(const RopeArgs& args);

}  // namespace dsv4::ops
