// Checks of merge_candidates' operands: candidates of all ranks and the list they become.
#include "ops/merge_candidates.h"

#include <string>

#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const MergeCandidatesArgs& args) {
  OperandChecker check("merge_candidates");
  check.Operand("candidates", args.candidates, {DType::kI64}, {kAnyDim, kAnyDim});
  check.Operand("selected", args.selected, {DType::kI32}, {args.candidates.shape[0], kAnyDim});
  const int64_t top_k = args.selected.shape[1];
  check.Require(top_k > 0 ? args.candidates.shape[1] % top_k == 0 : args.candidates.shape[1] == 0,
                "candidates", std::to_string(args.candidates.shape[1]) + " a token",
                "lists of " + std::to_string(top_k));
  check.Disjoint("selected", args.selected, "candidates", args.candidates);
  return check.status();
}

}  // namespace dsv4::ops
