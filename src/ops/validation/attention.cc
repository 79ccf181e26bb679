// Checks of attention's operands: queries, windows, entries, lists, sinks and output.
#include "ops/attention.h"

#include "ops/validation/attention_checks.h"

namespace dsv4::ops {

Status Validate(const AttentionArgs& args) {
  OperandChecker check("attention");
  check.Operand("q", args.q, {DType::kBF16, DType::kF32}, {kAnyDim, kAnyDim, kAnyDim});
  check.Operand("sink", args.sink, {DType::kF32}, {args.q.shape[1]});
  check.Operand("o", args.o, {args.q.dtype}, args.q.shape);
  check.Require(args.window_size >= 1, "window_size", args.window_size, "at least 1");
  CheckAttentionKeys(check, args, {}, "o", args.o);
  return check.status();
}

}  // namespace dsv4::ops
