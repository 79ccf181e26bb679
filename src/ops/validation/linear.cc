// Checks of linear's operands: activations, weight, output and rounding.
#include "ops/linear.h"

#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const LinearArgs& args) {
  OperandChecker check("linear");
  check.Operand("x", args.x, {DType::kBF16, DType::kF32}, {kAnyDim, kAnyDim}, Layout::kRows);
  check.WeightOperand("weight", args.weight, kAnyDim, args.x.shape[1]);
  if (!check.ok()) return check.status();
  check.Operand("y", args.y, {DType::kBF16, DType::kF32}, {args.x.shape[0], args.weight->rows},
                Layout::kRows);
  check.Disjoint("y", args.y, "x", args.x);
  return check.status();
}

}  // namespace dsv4::ops
