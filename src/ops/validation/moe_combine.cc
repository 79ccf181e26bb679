// Checks of moe_combine's operands: routed sum, shared expert and output.
#include "ops/moe_combine.h"

#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const MoeCombineArgs& args) {
  OperandChecker check("moe_combine");
  check.Operand("routed", args.routed, {DType::kF32}, {kAnyDim, kAnyDim});
  if (args.shared.is_null()) {
    check.Operand("y", args.y, {DType::kBF16, DType::kF32}, args.routed.shape);
  } else {
    check.Operand("shared", args.shared, {DType::kBF16, DType::kF32}, args.routed.shape);
    check.Operand("y", args.y, {args.shared.dtype}, args.routed.shape);
    check.SameOrDisjoint("y", args.y, "shared", args.shared);
  }
  if (args.y.dtype == DType::kF32) {
    check.SameOrDisjoint("y", args.y, "routed", args.routed);
  } else {
    check.Disjoint("y", args.y, "routed", args.routed);
  }
  return check.status();
}

}  // namespace dsv4::ops
