// SumTerms: the combine: a token's sum over its experts, whose outputs lie in several parts. The end of
// routed_experts.
//   parts    [num_parts, num_tokens, top_k, dim]  bf16 or f32, contiguous; 1 to kMaxTermParts parts, each what expert_terms gave
//   indices  [num_tokens, top_k]  i32 in [0, begins.back())
//   begins   num_parts + 1 ids from 0 on, ascending, in host memory; borrowed for the call. Part p has the expert outputs of
//            [begins[p], begins[p + 1])
//   y        [num_tokens, dim]    f32, contiguous; overlaps no input
// The sum is y[t] = ((0 + a) + b) + ... over t's assignments in ascending order of expert, those of one
// expert in the order of their slots. Here a, b are parts[p][t][k], p being the part of indices[t][k]. Sums
// in fp32. No other row of a part is read.
// Errors: InvalidArgument if dims or dtypes disagree, or begins do not ascend; OutOfRange names an index
// outside. num_tokens == 0 does nothing.
#pragma once

#include <cstdint>
#include <span>

#include "ops/op_context.h"
#include "tensor/tensor.h"

namespace dsv4::ops {

inline constexpr int64_t kMaxTermParts = 64;

struct SumTermsArgs {
  TensorView parts;
  TensorView indices;
  std::span<const int64_t> begins;
  TensorView y;
  DSV4_OPERANDS(parts, indices, y)
};

Status Validate(const SumTermsArgs& args);

// The part that has `expert`, which is in [0, begins.back()).
inline int64_t PartOf(std::span<const int64_t> begins, int64_t expert) {
  int64_t part = 0;
  while (expert >= begins[static_cast<size_t>(part) + 1]) ++part;
  return part;
}

}  // namespace dsv4::ops
