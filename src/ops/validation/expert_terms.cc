// Checks of expert_terms' operands: tokens, choices, experts and the terms they fill.
#include "ops/expert_terms.h"

#include <fmt/format.h>

#include "ops/validation/expert_checks.h"

namespace dsv4::ops {

Status Validate(const ExpertTermsArgs& args) {
  OperandChecker check("expert_terms");
  check.Operand("x", args.x, {DType::kBF16, DType::kF32}, {kAnyDim, kAnyDim});
  const int64_t num_tokens = args.x.shape[0];
  const int64_t dim = args.x.shape[1];
  check.Operand("indices", args.indices, {DType::kI32}, {num_tokens, kAnyDim});
  check.Operand("weights", args.weights, {DType::kF32}, {num_tokens, args.indices.shape[1]});
  check.Operand("terms", args.terms, {args.x.dtype}, {num_tokens, args.indices.shape[1], dim});
  check.Disjoint("terms", args.terms, "x", args.x);
  check.Disjoint("terms", args.terms, "indices", args.indices);
  check.Disjoint("terms", args.terms, "weights", args.weights);
  check.Require(args.limit > 0.0F, "limit", args.limit, "a positive number or infinity");
  const int64_t end = args.first_expert + static_cast<int64_t>(args.experts.size());
  check.Require(args.first_expert >= 0 && end <= args.num_experts, "experts",
                fmt::format("{} to {}", args.first_expert, end - 1),
                fmt::format("0 to {}", args.num_experts - 1));
  DSV4_RETURN_IF_ERROR(check.status());
  return CheckExperts("expert_terms", args.experts, dim, args.x.device);
}

}  // namespace dsv4::ops
