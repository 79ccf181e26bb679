// Checks of simulate_fp8's rows and groups.
#include "ops/simulate_fp8.h"

#include <string>

#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const SimulateFp8Args& args) {
  OperandChecker check("simulate_fp8");
  check.Operand("x", args.x, {DType::kBF16, DType::kF32}, {kAnyDim, kAnyDim}, Layout::kRows);
  check.Require(args.group > 0, "group", args.group, "at least 1");
  check.Require(args.num_columns >= 0 && args.num_columns <= args.x.shape[1], "num_columns", args.num_columns,
                "0 to " + std::to_string(args.x.shape[1]));
  if (!check.ok()) return check.status();
  check.Require(args.num_columns % args.group == 0, "num_columns", args.num_columns,
                "a multiple of the group, " + std::to_string(args.group));
  return check.status();
}

}  // namespace dsv4::ops
