// Router: chooses the experts of every token and their weights.
//   logits      [num_tokens, num_experts]  f32: gate.weight . u
//   bias        [num_experts]              f32 or null; steers the choice only
//   hash_table  [vocab_size, top_k]        i64 or i32, or null; when given it names the experts and bias must be null
//   token_ids   [num_tokens]               i32; null without hash_table
//   indices     [num_tokens, top_k]        i32
//   weights     [num_tokens, top_k]        f32
// t = sqrt(softplus(logit / temperature)), with softplus(x) = x above 20. The choice is hash_table[token_id],
// or the top_k highest t + bias, equal values by lowest index, NaN last, in descending order.
// `weights` = t[indices] / (sum(t[indices]) + sum_eps) * route_scale; without `normalise` t[indices] *
// route_scale. All in fp32 or wider.
// Errors: InvalidArgument if dims, dtypes or numbers disagree, both or neither of a consistent pair is given,
// or top_k > num_experts; OutOfRange names a token id outside the table or an expert in it that does not
// exist. Without tokens: nothing.
// Source: release inference code, class Gate (model.md 8.1).
#pragma once

#include "ops/op_context.h"

namespace dsv4::ops {

struct RouterArgs {
  TensorView logits;
  TensorView bias;        // May be null.
  TensorView hash_table;  // May be null.
  TensorView token_ids;   // May be null.
  TensorView indices;
  TensorView weights;
  float route_scale = 1.0F;
  float temperature = 1.0F;  // > 0
  float sum_eps = 0.0F;      // >= 0
  bool normalise = true;
  DSV4_OPERANDS(logits, indices, bias, hash_table, token_ids, weights)
};

Status Validate(const RouterArgs& args);

}  // namespace dsv4::ops
