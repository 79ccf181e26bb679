// Common checks of the contracts of the indexer's choice, made by one rank or by several, check alike. Only
// for their Validate functions.
#pragma once

#include <limits>
#include <string>

#include "ops/indexer_select.h"
#include "ops/validate.h"

namespace dsv4::ops {

// `out`, named `out_name`, is what the op writes; `shard` says which entries the sequences have.
template <typename Args>
void CheckIndexer(OperandChecker& check, const Args& args, const EntryShard& shard, std::string_view out_name,
                  const TensorView& out, DType out_dtype) {
  check.Operand("q", args.q, {DType::kBF16, DType::kF32}, {kAnyDim, kAnyDim, kAnyDim});
  const int64_t num_tokens = args.q.shape[0];
  check.Operand("weights", args.weights, {args.q.dtype}, {num_tokens, args.q.shape[1]});
  check.Operand(out_name, out, {out_dtype}, {num_tokens, kAnyDim});
  check.Require(args.ratio >= 1, "ratio", args.ratio, "at least 1");
  check.Sequences(args.sequences, num_tokens);
  if (!check.ok()) return;
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    const IndexerSequence& sequence = args.sequences[i];
    if (sequence.num_tokens == 0) continue;
    check.Require(sequence.keys.format == args.sequences[0].keys.format || args.sequences[0].num_tokens == 0,
                  "sequences", "keys of another format", "one format");
    const int64_t visible = (sequence.first_position + sequence.num_tokens) / args.ratio;
    check.Require(visible <= std::numeric_limits<int32_t>::max(), "sequences", visible,
                  "entries that fit i32");
    check.Pages("sequences[" + std::to_string(i) + "].keys", sequence.keys, args.q.shape[2], args.q.dtype,
                shard.NumRows(visible));
  }
  check.Disjoint(out_name, out, "q", args.q);
  check.Disjoint(out_name, out, "weights", args.weights);
}

}  // namespace dsv4::ops
