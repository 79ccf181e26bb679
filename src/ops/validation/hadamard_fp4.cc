// Checks of hadamard_fp4's rows: a power of two of columns, whole groups.
#include "ops/hadamard_fp4.h"

#include <string>

#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const HadamardFp4Args& args) {
  OperandChecker check("hadamard_fp4");
  check.Operand("x", args.x, {DType::kBF16, DType::kF32}, {kAnyDim, kAnyDim});
  const int64_t width = args.x.shape[1];
  check.Require(args.group >= 1, "group", args.group, "at least 1");
  if (!check.ok()) return check.status();
  if (args.rotate) {
    check.Require(width >= args.group && (width & (width - 1)) == 0, "x", "width " + std::to_string(width),
                  "a power of two of at least " + std::to_string(args.group));
  }
  check.Require(width % args.group == 0, "x", "width " + std::to_string(width),
                "a multiple of the group, " + std::to_string(args.group));
  return check.status();
}

}  // namespace dsv4::ops
