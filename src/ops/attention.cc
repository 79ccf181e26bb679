#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const AttentionArgs& args) {
  OperandChecker check("attention");
  check.Operand("q", args.q, {DType::kBF16, DType::kF32}, {kAnyDim, kAnyDim, kAnyDim});
  const int64_t num_tokens = args.q.shape[0];
  const int64_t head_dim = args.q.shape[2];
  check.Operand("sink", args.sink, {DType::kF32}, {args.q.shape[1]});
  check.Operand("o", args.o, {args.q.dtype}, args.q.shape);
  check.Disjoint("o", args.o, "q", args.q);
  check.Require(std::isfinite(args.softmax_scale) && args.softmax_scale > 0.0F, "softmax_scale",
                args.softmax_scale, "a positive number");
  check.Require(args.window_size >= 1, "window_size", args.window_size, "at least 1");
  check.Require(args.ratio >= 0, "ratio", args.ratio, "0 (no entries) or more");
  if (!args.selected.is_null()) {
    check.Operand("selected", args.selected, {DType::kI32}, {num_tokens, kAnyDim});
    check.Require(args.ratio > 0, "selected", "given", "null when ratio is 0");
    check.Disjoint("o", args.o, "selected", args.selected);
  }
  check.Sequences(args.sequences, num_tokens);
  if (!check.ok()) return check.status();

  for (size_t i = 0; i < args.sequences.size(); ++i) {
    const AttentionSequence& sequence = args.sequences[i];
    if (sequence.num_tokens == 0) continue;
    const std::string name = "sequences[" + std::to_string(i) + "]";
    check.Ring(name + ".window", sequence.window, head_dim, args.q.dtype,
               std::min(args.window_size - 1, sequence.first_position) + sequence.num_tokens);
    if (args.ratio == 0) continue;
    check.Pages(name + ".entries", sequence.entries, head_dim, args.q.dtype,
                (sequence.first_position + sequence.num_tokens) / args.ratio);
  }
  return check.status();
}

}  // namespace dsv4::ops
