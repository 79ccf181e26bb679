// Checks of hc_pre, hc_post and hc_head: streams, mixing matrices, scales, post and comb.
#include "ops/hyper_connection.h"

#include <cmath>
#include <initializer_list>
#include <string>

#include "ops/validate.h"

namespace dsv4::ops {

namespace {

constexpr std::initializer_list<DType> kActivations = {DType::kBF16, DType::kF32};

void CheckHcMult(OperandChecker& check, int64_t hc_mult) {
  check.Require(hc_mult >= 1 && hc_mult <= kMaxHcMult, "hc_mult", hc_mult,
                "1 to " + std::to_string(kMaxHcMult));
}

void CheckEps(OperandChecker& check, float norm_eps, float hc_eps) {
  check.Require(std::isfinite(norm_eps) && norm_eps > 0.0F, "norm_eps", norm_eps, "a positive number");
  check.Require(std::isfinite(hc_eps) && hc_eps >= 0.0F, "hc_eps", hc_eps, "a number not below 0");
}

}  // namespace

Status Validate(const HcPreArgs& args) {
  OperandChecker check("hc_pre");
  check.Operand("streams", args.streams, kActivations, {kAnyDim, kAnyDim, kAnyDim});
  const int64_t num_tokens = args.streams.shape[0];
  const int64_t hc_mult = args.streams.shape[1];
  const int64_t dim = args.streams.shape[2];
  const int64_t mix = (2 + hc_mult) * hc_mult;
  CheckHcMult(check, hc_mult);
  check.Operand("fn", args.fn, {DType::kF32}, {mix, hc_mult * dim});
  check.Operand("scale", args.scale, {DType::kF32}, {3});
  check.Operand("base", args.base, {DType::kF32}, {mix});
  check.Operand("u", args.u, {args.streams.dtype}, {num_tokens, dim});
  check.Operand("post", args.post, {DType::kF32}, {num_tokens, hc_mult});
  check.Operand("comb", args.comb, {DType::kF32}, {num_tokens, hc_mult, hc_mult});
  check.Disjoint("u", args.u, "streams", args.streams);
  check.Disjoint("post", args.post, "comb", args.comb);
  if (!args.given.is_null()) check.Operand("given", args.given, {DType::kF32}, {num_tokens, hc_mult});
  if (!args.pre.is_null()) check.Operand("pre", args.pre, {DType::kF32}, {num_tokens, hc_mult});
  if (!args.given.is_null() && !args.pre.is_null()) check.Disjoint("pre", args.pre, "given", args.given);
  CheckEps(check, args.norm_eps, args.hc_eps);
  check.Require(args.sinkhorn_iters >= 1, "sinkhorn_iters", int64_t{args.sinkhorn_iters}, "at least 1");
  return check.status();
}

Status Validate(const HcPostArgs& args) {
  OperandChecker check("hc_post");
  check.Operand("residual", args.residual, kActivations, {kAnyDim, kAnyDim, kAnyDim});
  const int64_t num_tokens = args.residual.shape[0];
  const int64_t hc_mult = args.residual.shape[1];
  CheckHcMult(check, hc_mult);
  check.Operand("y", args.y, {args.residual.dtype}, {num_tokens, args.residual.shape[2]});
  check.Operand("post", args.post, {DType::kF32}, {num_tokens, hc_mult});
  check.Operand("comb", args.comb, {DType::kF32}, {num_tokens, hc_mult, hc_mult});
  check.Operand("out", args.out, {args.residual.dtype}, args.residual.shape);
  check.SameOrDisjoint("out", args.out, "residual", args.residual);
  check.Disjoint("out", args.out, "y", args.y);
  return check.status();
}

Status Validate(const HcHeadArgs& args) {
  OperandChecker check("hc_head");
  check.Operand("streams", args.streams, kActivations, {kAnyDim, kAnyDim, kAnyDim});
  const int64_t hc_mult = args.streams.shape[1];
  const int64_t dim = args.streams.shape[2];
  CheckHcMult(check, hc_mult);
  check.Operand("y", args.y, {args.streams.dtype}, {args.streams.shape[0], dim});
  check.Disjoint("y", args.y, "streams", args.streams);
  if (!args.given.is_null()) {
    check.Operand("given", args.given, {DType::kF32}, {args.streams.shape[0], hc_mult});
    check.Require(args.fn.is_null() && args.scale.is_null() && args.base.is_null(), "fn",
                  "weights to compute others from", "none beside given ones");
    return check.status();
  }
  check.Operand("fn", args.fn, {DType::kF32}, {hc_mult, hc_mult * dim});
  check.Operand("scale", args.scale, {DType::kF32}, {1});
  check.Operand("base", args.base, {DType::kF32}, {hc_mult});
  CheckEps(check, args.norm_eps, args.hc_eps);
  return check.status();
}

}  // namespace dsv4::ops
