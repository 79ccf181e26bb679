// RoutedExperts: the sum over each token's chosen experts of w2(swiglu(w1 x, w3 x)).
//   x        [num_tokens, dim]    bf16 or f32, contiguous
//   indices  [num_tokens, top_k]  i32 in [0, num_experts); an expert may repeat in a row: each slot adds its own term
//   weights  [num_tokens, top_k]  f32
//   experts  num_experts triples: w1 (gate) and w3 (up) [inter_dim, dim], w2 (down) [dim, inter_dim], each in its own
//            format
//   limit    as in swiglu.h
//   y        [num_tokens, dim]    f32, contiguous
// The reference is a composition: linear(w1), linear(w3) -> x's dtype; swiglu with the routing weight -> x's
// dtype; linear(w2) -> x's dtype. Then comes an fp32 sum in ascending order of expert index. Rounding points
// are those of the parts. Each expert's weights are read once per call however many tokens chose it.
// Errors: InvalidArgument if dims or dtypes disagree; OutOfRange names an index outside the experts.
// num_tokens == 0 does nothing. Source: release inference code, MoE.forward (model.md 8.2 and 8.3).
#pragma once

#include <span>

#include "formats/weight.h"
#include "ops/op_context.h"

namespace dsv4::ops {

struct ExpertWeights {
  Weight w1;
  Weight w2;
  Weight w3;
};

struct RoutedExpertsArgs {
  TensorView x;
  TensorView indices;
  TensorView weights;
  std::span<const ExpertWeights> experts;
  float limit = 0.0F;
  TensorView y;
  DSV4_OPERANDS(x, indices, experts, weights, y)
};

Status Validate(const RoutedExpertsArgs& args);

}  // namespace dsv4::ops
