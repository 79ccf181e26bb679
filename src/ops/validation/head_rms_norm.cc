// Checks of head_rms_norm's heads and eps.
#include "ops/head_rms_norm.h"

#include <cmath>

#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const HeadRmsNormArgs& args) {
  OperandChecker check("head_rms_norm");
  check.Operand("x", args.x, {DType::kBF16, DType::kF32}, {kAnyDim, kAnyDim, kAnyDim});
  check.Operand("y", args.y, {args.x.dtype}, args.x.shape);
  check.SameOrDisjoint("y", args.y, "x", args.x);
  check.Require(std::isfinite(args.eps) && args.eps > 0.0F, "eps", args.eps, "a positive number");
  return check.status();
}

}  // namespace dsv4::ops
