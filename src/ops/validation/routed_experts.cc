// Checks of routed_experts' operands: tokens, choices, weights of choices, experts and output.
#include "ops/routed_experts.h"

#include "ops/validation/expert_checks.h"

namespace dsv4::ops {

Status Validate(const RoutedExpertsArgs& args) {
  OperandChecker check("routed_experts");
  check.Operand("x", args.x, {DType::kBF16, DType::kF32}, {kAnyDim, kAnyDim});
  const int64_t num_tokens = args.x.shape[0];
  const int64_t dim = args.x.shape[1];
  check.Operand("indices", args.indices, {DType::kI32}, {num_tokens, kAnyDim});
  check.Operand("weights", args.weights, {DType::kF32}, {num_tokens, args.indices.shape[1]});
  check.Operand("y", args.y, {DType::kF32}, {num_tokens, dim});
  check.Disjoint("y", args.y, "x", args.x);
  check.Disjoint("y", args.y, "indices", args.indices);
  check.Disjoint("y", args.y, "weights", args.weights);
  check.Require(args.limit > 0.0F, "limit", args.limit, "a positive number or infinity");
  check.Require(!args.experts.empty(), "experts", "none", "at least 1");
  DSV4_RETURN_IF_ERROR(check.status());
  return CheckExperts("routed_experts", args.experts, dim, args.x.device);
}

}  // namespace dsv4::ops
