// Validate of engram_mix.
#include "ops/engram_mix.h"

#include <cmath>
#include <string>

#include "ops/hyper_connection.h"
#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const EngramMixArgs& args) {
  OperandChecker check("engram_mix");
  check.Operand("streams", args.streams, {DType::kBF16, DType::kF32}, {kAnyDim, kAnyDim, kAnyDim});
  const int64_t num_tokens = args.streams.shape[0];
  const int64_t hc_mult = args.streams.shape[1];
  const int64_t dim = args.streams.shape[2];
  check.Require(hc_mult >= 1 && hc_mult <= kMaxHcMult, "hc_mult", hc_mult,
                "1 to " + std::to_string(kMaxHcMult));
  check.Operand("mixed", args.mixed, {args.streams.dtype}, {num_tokens, (hc_mult + 1) * dim});
  check.Operand("q_weight", args.q_weight, {DType::kF32}, {hc_mult, dim});
  check.Operand("k_weight", args.k_weight, {DType::kF32}, {hc_mult, dim});
  if (!args.is_image.is_null()) check.Operand("is_image", args.is_image, {DType::kI32}, {num_tokens});
  check.Operand("out", args.out, {args.streams.dtype}, args.streams.shape);
  check.SameOrDisjoint("out", args.out, "streams", args.streams);
  check.Disjoint("out", args.out, "mixed", args.mixed);
  check.Disjoint("out", args.out, "q_weight", args.q_weight);
  check.Disjoint("out", args.out, "k_weight", args.k_weight);
  if (!args.is_image.is_null()) check.Disjoint("out", args.out, "is_image", args.is_image);
  check.Require(std::isfinite(args.eps) && args.eps > 0.0F, "eps", args.eps, "a positive number");
  return check.status();
}

}  // namespace dsv4::ops
