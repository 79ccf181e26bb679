// Checks of router's operands: scores, bias or hash table, ids and weights.
#include "ops/router.h"

#include <cmath>
#include <string>

#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const RouterArgs& args) {
  OperandChecker check("router");
  check.Operand("logits", args.logits, {DType::kF32}, {kAnyDim, kAnyDim});
  const int64_t num_tokens = args.logits.shape[0];
  const int64_t num_experts = args.logits.shape[1];
  check.Operand("indices", args.indices, {DType::kI32}, {num_tokens, kAnyDim});
  const int64_t top_k = args.indices.shape[1];
  check.Require(top_k >= 1 && top_k <= num_experts, "indices", "top_k " + std::to_string(top_k),
                "1 to " + std::to_string(num_experts));
  check.Operand("weights", args.weights, {DType::kF32}, {num_tokens, top_k});
  check.Disjoint("indices", args.indices, "logits", args.logits);
  check.Disjoint("weights", args.weights, "logits", args.logits);
  check.Disjoint("weights", args.weights, "indices", args.indices);
  check.Require(std::isfinite(args.route_scale), "route_scale", args.route_scale, "a finite number");
  check.Require(std::isfinite(args.temperature) && args.temperature > 0.0F, "temperature", args.temperature,
                "a positive number");
  check.Require(std::isfinite(args.sum_eps) && args.sum_eps >= 0.0F, "sum_eps", args.sum_eps,
                "a number not below 0");
  if (args.hash_table.is_null()) {
    check.Require(args.token_ids.is_null(), "token_ids", "given", "null without hash_table");
    if (!args.bias.is_null()) check.Operand("bias", args.bias, {DType::kF32}, {num_experts});
  } else {
    check.Require(args.bias.is_null(), "bias", "given", "null with hash_table");
    check.Operand("hash_table", args.hash_table, {DType::kI64, DType::kI32}, {kAnyDim, top_k});
    check.Operand("token_ids", args.token_ids, {DType::kI32}, {num_tokens});
  }
  return check.status();
}

}  // namespace dsv4::ops
