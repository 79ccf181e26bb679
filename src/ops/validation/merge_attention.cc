// Checks of merge_attention's operands: parts, maxima, sums, sinks and output.
#include "ops/merge_attention.h"

#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const MergeAttentionArgs& args) {
  OperandChecker check("merge_attention");
  check.Operand("o", args.o, {DType::kBF16, DType::kF32}, {kAnyDim, kAnyDim, kAnyDim});
  check.Operand("parts", args.parts, {DType::kF32},
                {kAnyDim, args.o.shape[0], args.o.shape[1], args.o.shape[2] + 2});
  check.Operand("sink", args.sink, {DType::kF32}, {args.o.shape[1]});
  check.Disjoint("o", args.o, "parts", args.parts);
  check.Disjoint("o", args.o, "sink", args.sink);
  return check.status();
}

}  // namespace dsv4::ops
