// Checks of rope's rows, positions and frequencies.
#include "ops/rope.h"

#include <string>

#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const RopeArgs& args) {
  OperandChecker check("rope");
  check.Operand("x", args.x, {DType::kBF16, DType::kF32}, {kAnyDim, kAnyDim, kAnyDim});
  check.Operand("positions", args.positions, {DType::kI32}, {args.x.shape[0]});
  check.Operand("frequencies", args.frequencies, {DType::kF32}, {kAnyDim});
  check.Require(2 * args.frequencies.shape[0] <= args.x.shape[2], "frequencies", args.frequencies.shape[0],
                "at most half the width, " + std::to_string(args.x.shape[2] / 2));
  check.Disjoint("x", args.x, "positions", args.positions);
  check.Disjoint("x", args.x, "frequencies", args.frequencies);
  return check.status();
}

}  // namespace dsv4::ops
