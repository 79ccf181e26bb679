// ExpertTerms: expert outputs before the combine: the rows that routed_experts sums, unsummed.
//   x        [num_tokens, dim]         bf16 or f32, contiguous
//   indices  [num_tokens, top_k]       i32 in [0, num_experts): of all experts, wherever they are
//   weights  [num_tokens, top_k]       f32
//   experts  those with the ids [first_expert, first_expert + experts.size()), as in routed_experts.h
//   limit    as in swiglu.h
//   terms    [num_tokens, top_k, dim]  x's dtype, contiguous; overlaps no input
// If the expert indices[t][k] is here, terms[t][k] = its linear(w2) of x[t], rounded where routed_experts
// rounds. Rows of other assignments are left as they are. sum_terms over the parts of all experts is
// routed_experts, bit for bit. Meant for up to about a thousand assignments: the rows of all are in `terms`,
// and the host does not count which are here.
// Errors: InvalidArgument if dims or dtypes disagree, or experts have ids outside [0, num_experts);
// OutOfRange names an index outside. num_tokens == 0 or no experts: does nothing.
#pragma once

#include "ops/routed_experts.h"

namespace dsv4::ops {

struct ExpertTermsArgs {
  TensorView x;
  TensorView indices;
  TensorView weights;
  std::span<const ExpertWeights> experts;
  int64_t first_expert = 0;
  int64_t num_experts = 0;
  float limit = 0.0F;
  TensorView terms;
  DSV4_OPERANDS(x, indices, experts, weights, terms)
};

Status Validate(const ExpertTermsArgs& args);

}  // namespace dsv4::ops
