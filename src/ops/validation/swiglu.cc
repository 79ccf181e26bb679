// Checks of swiglu's gate, up, row weights and limit.
#include "ops/swiglu.h"

#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const SwigluArgs& args) {
  OperandChecker check("swiglu");
  check.Operand("gate", args.gate, {DType::kBF16, DType::kF32}, {kAnyDim, kAnyDim});
  check.Operand("up", args.up, {args.gate.dtype}, args.gate.shape);
  if (!args.row_weights.is_null()) {
    check.Operand("row_weights", args.row_weights, {DType::kF32}, {args.gate.shape[0]});
    check.Disjoint("y", args.y, "row_weights", args.row_weights);
  }
  check.Operand("y", args.y, {args.gate.dtype}, args.gate.shape);
  check.SameOrDisjoint("y", args.y, "gate", args.gate);
  check.SameOrDisjoint("y", args.y, "up", args.up);
  // Written so that NaN fails too.
  check.Require(args.limit > 0.0F, "limit", args.limit, "a positive number or infinity");
  return check.status();
}

}  // namespace dsv4::ops
