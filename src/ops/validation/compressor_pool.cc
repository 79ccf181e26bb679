// Checks of compressor_pool's operands: rows, history rings, blocks, ape and entries.
#include "ops/compressor_pool.h"

#include <algorithm>
#include <string>

#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const CompressorPoolArgs& args) {
  OperandChecker check("compressor_pool");
  check.Require(args.ratio >= 1, "ratio", args.ratio, "at least 1");
  if (!check.ok()) return check.status();
  const int64_t channels = args.overlap ? 2 : 1;
  check.Operand("values", args.values, {DType::kF32}, {kAnyDim, kAnyDim});
  const int64_t num_tokens = args.values.shape[0];
  const int64_t row = args.values.shape[1];
  check.Require(row % channels == 0, "values", "width " + std::to_string(row), "an even number with overlap");
  check.Operand("scores", args.scores, {DType::kF32}, {num_tokens, row});
  if (!args.ape.is_null()) check.Operand("ape", args.ape, {DType::kF32}, {args.ratio, row});
  check.Sequences(args.sequences, num_tokens);
  if (!check.ok()) return check.status();

  int64_t num_entries = 0;
  const int64_t min_capacity = std::max<int64_t>(1, args.ratio * channels - 1);
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    const CompressorSequence& sequence = args.sequences[i];
    if (sequence.num_tokens == 0) continue;
    const std::string name = "sequences[" + std::to_string(i) + "]";
    check.Ring(name + ".value_history", sequence.value_history, row, DType::kF32, min_capacity);
    check.Ring(name + ".score_history", sequence.score_history, row, DType::kF32, min_capacity);
    check.Require(!sequence.value_history.format.packed() && !sequence.score_history.format.packed(), name,
                  "packed histories", "raw rows, which are not rounded");
    num_entries += NumCompletedEntries(sequence.first_position, sequence.num_tokens, args.ratio);
  }
  check.Operand("pooled", args.pooled, {DType::kBF16, DType::kF32}, {num_entries, row / channels});
  check.Disjoint("pooled", args.pooled, "values", args.values);
  check.Disjoint("pooled", args.pooled, "scores", args.scores);
  return check.status();
}

}  // namespace dsv4::ops
