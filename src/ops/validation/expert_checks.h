// Checks shared by the contracts of ops over a layer's routed experts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ops/routed_experts.h"
#include "ops/validate.h"

namespace dsv4::ops {

// Properties of a weight's tensor, but for where it lies.
inline bool LaidOutAs(const TensorView& view, const TensorView& other) {
  return view.is_null() == other.is_null() && view.dtype == other.dtype && view.shape == other.shape &&
         view.strides == other.strides && view.device == other.device;
}
inline bool LaidOutAs(const Weight& weight, const Weight& other) {
  return weight.format == other.format && weight.rows == other.rows && weight.cols == other.cols &&
         weight.block_rows == other.block_rows && weight.block_cols == other.block_cols &&
         weight.activation == other.activation && weight.repacked == other.repacked &&
         LaidOutAs(weight.data, other.data) && LaidOutAs(weight.scale, other.scale);
}
inline bool LaidOutAs(const ExpertWeights& expert, const ExpertWeights& other) {
  return LaidOutAs(expert.w1, other.w1) && LaidOutAs(expert.w2, other.w2) && LaidOutAs(expert.w3, other.w3);
}

// Experts of rows of `dim` numbers, all of one width, each matrix in its own format. They are on the device
// of x or (WeightTier::kHost) on the host. None: nothing to check.
inline Status CheckExperts(std::string_view op, std::span<const ExpertWeights> experts, int64_t dim,
                           Device device) {
  for (size_t i = 0; i < experts.size(); ++i) {
    const ExpertWeights& expert = experts[i];
    // A layer has hundreds, and an op on one token takes no longer than names for all of them.
    if (i > 0 && LaidOutAs(expert, experts[i - 1])) continue;
    const int64_t inter_dim = experts[0].w1.rows;
    const std::string name = std::string(op) + ": expert " + std::to_string(i);
    OperandChecker check(name);
    check.WeightOperand("w1", &expert.w1, inter_dim, dim);
    check.WeightOperand("w3", &expert.w3, inter_dim, dim);
    check.WeightOperand("w2", &expert.w2, dim, inter_dim);
    const Device where = expert.w1.data.device;
    check.Require(where == device || where == Device{}, "w1", "on another device than x",
                  "x's device or the host");
    DSV4_RETURN_IF_ERROR(check.status());
  }
  return {};
}

}  // namespace dsv4::ops
