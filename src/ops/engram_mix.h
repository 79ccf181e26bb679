// EngramMix: adds the value that a token's n-gram rows give to its residual streams, through a gate of each
// stream.
//   `streams`   [num_tokens, H, dim]   bf16 or f32.
//   `mixed`     [num_tokens, (H + 1) dim]   dtype of streams: keys k_0 .. k_{H-1}, then the value v; wkv times the rows.
//   `q_weight`  [H, dim]   f32.
//   `k_weight`  [H, dim]   f32.
//   `is_image`  [num_tokens]   i32, may be absent: where it is not 0, the streams stay as they are.
//   `out`       [num_tokens, H, dim]   dtype of streams; streams' memory, or disjoint from all inputs.
//   `eps`       > 0, from config rms_norm_eps.
// For each token and stream i, S_i and k_i its rows:
//   `d_i`    = sum(S_i q_weight_i k_weight_i k_i) * rsqrt(mean(S_i^2) + eps) * rsqrt(mean(k_i^2) + eps) * dim^-0.5.
//   `gate_i` = sigmoid(copysign(sqrt(max(|d_i|, 1e-6)), d_i)).
//   `out_i`  = round(S_i + gate_i v).
// All in fp32 or wider. One rounding point: the store to out.
// A row of zeros gives d_i = 0, however small eps is.
// Errors: InvalidArgument if dims or dtypes disagree, or H > kMaxHcMult. Without tokens it does nothing.
// Source: release inference code, class Engram (v4.1 forward, section 3).
#pragma once

#include "ops/op_context.h"

namespace dsv4::ops {

struct EngramMixArgs {
  TensorView streams;
  TensorView mixed;
  TensorView q_weight;
  TensorView k_weight;
  TensorView is_image;
  TensorView out;
  float eps = 0.0F;
  DSV4_OPERANDS(streams, mixed, q_weight, k_weight, is_image, out)
};

inline constexpr double kLeastEngramSimilarity = 1e-6;

Status Validate(const EngramMixArgs& args);

}  // namespace dsv4::ops
