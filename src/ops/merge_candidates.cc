#include "ops/merge_candidates.h"

#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const MergeCandidatesArgs& args) {
  OperandChecker check("merge_candidates");
  check.Operand("candidates", args.candidates, {DType::kI64}, {kAnyDim, kAnyDim});
  check.Operand("selected", args.selected, {DType::kI32}, {args.candidates.shape[0], kAnyDim});
  check.Disjoint("selected", args.selected, "candidates", args.candidates);
  return check.status();
}

}  // namespace dsv4::ops
