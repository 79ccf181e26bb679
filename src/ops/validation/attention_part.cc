// Checks of attention_part's operands: as attention's, with parts, maxima and sums as output.
#include "ops/attention_part.h"

#include "ops/validation/attention_checks.h"

namespace dsv4::ops {

Status Validate(const AttentionPartArgs& args) {
  OperandChecker check("attention_part");
  check.Operand("q", args.q, {DType::kBF16, DType::kF32}, {kAnyDim, kAnyDim, kAnyDim});
  check.Operand("part", args.part, {DType::kF32}, {args.q.shape[0], args.q.shape[1], args.q.shape[2] + 2});
  check.Require(args.window_size >= 0, "window_size", args.window_size, "0 (no window) or more");
  CheckShard(check, args.shard);
  CheckAttentionKeys(check, args, args.shard, "part", args.part);
  return check.status();
}

}  // namespace dsv4::ops
