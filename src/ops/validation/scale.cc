// Checks of scale's operands and factor.
#include "ops/scale.h"

#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const ScaleArgs& args) {
  OperandChecker check("scale");
  // Any shape: x is compared with itself for everything but dtype and layout.
  check.Operand("x", args.x, {DType::kBF16, DType::kF32}, args.x.shape);
  check.Operand("y", args.y, {args.x.dtype}, args.x.shape);
  check.SameOrDisjoint("y", args.y, "x", args.x);
  return check.status();
}

}  // namespace dsv4::ops
