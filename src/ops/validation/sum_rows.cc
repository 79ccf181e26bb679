// Checks of sum_rows' lists, rows and output.
#include "ops/sum_rows.h"

#include <fmt/format.h>

#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const SumRowsArgs& args) {
  OperandChecker check("sum_rows");
  check.Operand("out", args.out, {DType::kF32}, {kAnyDim, kAnyDim});
  check.Operand("rows", args.rows, {DType::kF32},
                {static_cast<int64_t>(args.targets.size()), args.out.shape[1]});
  check.Disjoint("out", args.out, "rows", args.rows);
  DSV4_RETURN_IF_ERROR(check.status());
  for (size_t i = 0; i < args.targets.size(); ++i) {
    if (args.targets[i] >= 0 && args.targets[i] < args.out.shape[0]) continue;
    return OutOfRange(
        fmt::format("op sum_rows: targets[{}]: {}, want 0 to {}", i, args.targets[i], args.out.shape[0] - 1));
  }
  return {};
}

}  // namespace dsv4::ops
