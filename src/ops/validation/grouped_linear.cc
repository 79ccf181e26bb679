// Checks of grouped_linear's operands: groups of columns, weight and output.
#include "ops/grouped_linear.h"

#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const GroupedLinearArgs& args) {
  OperandChecker check("grouped_linear");
  check.Operand("x", args.x, {DType::kBF16, DType::kF32}, {kAnyDim, kAnyDim, kAnyDim});
  check.Operand("y", args.y, {args.x.dtype}, {args.x.shape[0], args.x.shape[1], kAnyDim});
  check.WeightOperand("weight", args.weight, args.x.shape[1] * args.y.shape[2], args.x.shape[2]);
  check.Disjoint("y", args.y, "x", args.x);
  if (!check.ok()) return check.status();
  check.Require(args.weight->activation == ActivationQuant::kNone, "weight", "rounds its activations",
                "activations as they are");
  return check.status();
}

}  // namespace dsv4::ops
