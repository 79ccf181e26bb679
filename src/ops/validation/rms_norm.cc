// Checks of rms_norm's rows, weight and eps.
#include "ops/rms_norm.h"

#include <cmath>

#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const RmsNormArgs& args) {
  OperandChecker check("rms_norm");
  check.Operand("x", args.x, {DType::kBF16, DType::kF32}, {kAnyDim, kAnyDim}, Layout::kRows);
  check.Operand("weight", args.weight, {DType::kF32}, {args.x.shape[1]});
  check.Operand("y", args.y, {DType::kBF16, DType::kF32}, {args.x.shape[0], args.x.shape[1]}, Layout::kRows);
  check.SameOrDisjoint("y", args.y, "x", args.x);
  check.Disjoint("y", args.y, "weight", args.weight);
  check.Require(std::isfinite(args.eps) && args.eps > 0.0F, "eps", args.eps, "a positive number");
  return check.status();
}

}  // namespace dsv4::ops
