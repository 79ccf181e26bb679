#include "ops/indexer_select.h"

#include <limits>
#include <string>

#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const IndexerSelectArgs& args) {
  OperandChecker check("indexer_select");
  check.Operand("q", args.q, {DType::kBF16, DType::kF32}, {kAnyDim, kAnyDim, kAnyDim});
  const int64_t num_tokens = args.q.shape[0];
  check.Operand("weights", args.weights, {args.q.dtype}, {num_tokens, args.q.shape[1]});
  check.Operand("selected", args.selected, {DType::kI32}, {num_tokens, kAnyDim});
  check.Require(args.ratio >= 1, "ratio", args.ratio, "at least 1");
  check.Sequences(args.sequences, num_tokens);
  if (!check.ok()) return check.status();
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    const IndexerSequence& sequence = args.sequences[i];
    if (sequence.num_tokens == 0) continue;
    const int64_t visible = (sequence.first_position + sequence.num_tokens) / args.ratio;
    check.Require(visible <= std::numeric_limits<int32_t>::max(), "sequences", visible,
                  "entries that fit i32");
    check.Pages("sequences[" + std::to_string(i) + "].keys", sequence.keys, args.q.shape[2], args.q.dtype,
                visible);
  }
  check.Disjoint("selected", args.selected, "q", args.q);
  check.Disjoint("selected", args.selected, "weights", args.weights);
  return check.status();
}

}  // namespace dsv4::ops
