#include "ops/routed_experts.h"

#include <string>

#include "ops/validate.h"

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
  if (!check.ok()) return check.status();

  const int64_t inter_dim = args.experts[0].w1.rows;
  for (size_t i = 0; check.ok() && i < args.experts.size(); ++i) {
    const ExpertWeights& expert = args.experts[i];
    const std::string op = "routed_experts: expert " + std::to_string(i);
    OperandChecker expert_check(op);
    expert_check.WeightOperand("w1", &expert.w1, inter_dim, dim);
    expert_check.WeightOperand("w3", &expert.w3, inter_dim, dim);
    expert_check.WeightOperand("w2", &expert.w2, dim, inter_dim);
    if (!expert_check.ok()) return expert_check.status();
    check.Require(expert.w1.data.device == args.x.device, "experts", "on another device than x",
                  "one device for all");
  }
  return check.status();
}

}  // namespace dsv4::ops
