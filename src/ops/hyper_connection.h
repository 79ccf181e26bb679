// The three manifold-constrained hyper-connection (mHC) ops. HcPre mixes the residual streams into a
// sub-layer's input. HcPost spreads its output back over the streams. HcHead mixes the streams once more in
// front of the final norm.
//
// Let H = hc_mult, and x = the streams of one token flattened stream-major. With
//   g    = rsqrt(mean(x^2) + norm_eps), m[k] = g * sum_j fn[k, j] x[j], both over all H * dim values
// the split of m, scale and base is in the order pre, post, comb:
//   pre[i]  = sigmoid(m[i] scale[0] + base[i]) + hc_eps
//   post[i] = 2 sigmoid(m[H+i] scale[1] + base[H+i])
//   C       = softmax over j of (m[2H + Hi + j] scale[2] + base[2H + Hi + j]) + hc_eps
//   C is then normalised: columns (/(sum_i + hc_eps)); (sinkhorn_iters - 1) times rows, then columns (/(sum + hc_eps))
//   u[d]    = round(sum_i pre[i] streams[i, d]), with the weights `given` instead of pre where there are some
// All in fp32 or wider; pre, post and comb stay fp32.
//
// HcPre   streams [num_tokens, H, dim] bf16 or f32; fn [(2+H)H, H*dim], scale [3], base [(2+H)H], all f32;
//         u [num_tokens, dim] dtype of streams; post [num_tokens, H] f32; comb [num_tokens, H, H] f32
//         (row i = source stream); given, pre [num_tokens, H] f32 or null, not the same memory: pre is stored where there is room
// HcPost  y [num_tokens, dim]; residual, out [num_tokens, H, dim]; same dtype, residual and out may be the
// same memory;
//         out[j, d] = round(post[j] y[d] + sum_i comb[i, j] residual[i, d]): the sum runs over comb's FIRST index
// HcHead  fn [H, H*dim], scale [1], base [H];
//         y[d] = round(sum_i (sigmoid(m[i] scale + base[i]) + hc_eps) streams[i, d])
//         or, with `given` [num_tokens, H] f32 and without fn, scale and base, y[d] = round(sum_i given[i] streams[i, d])
// Rounding points: the stores to u, out and y.
// Errors: InvalidArgument if dims or dtypes disagree, hc_mult > kMaxHcMult or sinkhorn_iters < 1. num_tokens
// == 0 does nothing. Source: release inference code, hc_pre, hc_post, hc_split_sinkhorn (model.md 4).
#pragma once

#include "ops/op_context.h"

namespace dsv4::ops {

inline constexpr int64_t kMaxHcMult = 16;

struct HcPreArgs {
  TensorView streams;
  TensorView fn;
  TensorView scale;
  TensorView base;
  TensorView u;
  TensorView post;
  TensorView comb;
  float norm_eps = 0.0F;
  float hc_eps = 0.0F;
  int sinkhorn_iters = 0;
  TensorView given = {};  // May be null.
  TensorView pre = {};    // May be null.
  DSV4_OPERANDS(streams, fn, scale, base, u, post, comb, given, pre)
};

struct HcPostArgs {
  TensorView y;
  TensorView residual;
  TensorView post;
  TensorView comb;
  TensorView out;
  DSV4_OPERANDS(residual, y, post, comb, out)
};

struct HcHeadArgs {
  TensorView streams;
  TensorView fn;
  TensorView scale;
  TensorView base;
  TensorView y;
  float norm_eps = 0.0F;
  float hc_eps = 0.0F;
  TensorView given = {};  // May be null.
  DSV4_OPERANDS(streams, fn, scale, base, y, given)
};

Status Validate(const HcPreArgs& args);
Status Validate(const HcPostArgs& args);
Status Validate(const HcHeadArgs& args);

}  // namespace dsv4::ops
