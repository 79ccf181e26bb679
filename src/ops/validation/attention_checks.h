// Common checks of attention's contract and of its parts'. Only for their Validate functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "ops/attention.h"
#include "ops/validate.h"

namespace dsv4::ops {

// `out`, named `out_name`, is what the op writes; `shard` says which entries the sequences have.
template <typename Args>
void CheckAttentionKeys(OperandChecker& check, const Args& args, const EntryShard& shard,
                        std::string_view out_name, const TensorView& out) {
  const int64_t num_tokens = args.q.shape[0];
  const int64_t head_dim = args.q.shape[2];
  check.Disjoint(out_name, out, "q", args.q);
  check.Require(std::isfinite(args.softmax_scale) && args.softmax_scale > 0.0F, "softmax_scale",
                args.softmax_scale, "a positive number");
  check.Require(args.ratio >= 0, "ratio", args.ratio, "0 (no entries) or more");
  if (!args.selected.is_null()) {
    check.Operand("selected", args.selected, {DType::kI32}, {num_tokens, kAnyDim});
    check.Require(args.ratio > 0, "selected", "given", "null when ratio is 0");
    check.Disjoint(out_name, out, "selected", args.selected);
  }
  check.Sequences(args.sequences, num_tokens);
  if (!check.ok()) return;

  const AttentionSequence* first = nullptr;
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    const AttentionSequence& sequence = args.sequences[i];
    if (sequence.num_tokens == 0) continue;
    const std::string name = "sequences[" + std::to_string(i) + "]";
    if (first == nullptr) first = &sequence;
    const bool one_format = (args.window_size == 0 || sequence.window.format == first->window.format) &&
                            (args.ratio == 0 || sequence.entries.format == first->entries.format);
    check.Require(one_format, name, "rows of another format", "that of the sequences before");
    if (args.window_size > 0) {
      check.Ring(name + ".window", sequence.window, head_dim, args.q.dtype,
                 std::min(args.window_size - 1, sequence.first_position) + sequence.num_tokens);
    }
    if (args.ratio == 0) continue;
    check.Pages(name + ".entries", sequence.entries, head_dim, args.q.dtype,
                shard.NumRows((sequence.first_position + sequence.num_tokens) / args.ratio));
  }
}

inline void CheckShard(OperandChecker& check, const EntryShard& shard) {
  check.Require(shard.count >= 1, "shard", shard.count, "at least 1 shard");
  check.Require(0 <= shard.index && shard.index < shard.count, "shard", shard.index,
                "0 to " + std::to_string(shard.count - 1));
}

}  // namespace dsv4::ops
