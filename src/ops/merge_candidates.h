// MergeCandidates: the entries that IndexerSelect would have chosen, from the candidates of every rank
// (IndexerCandidates).
//   candidates  [num_tokens, num_ranks * top_k]  i64, unsigned as there; 0: none. Each rank's are in descending order; no repeats
//   selected    [num_tokens, top_k]              i32: the entries of the top_k largest, in ascending order, then -1
// Exact: the best of all are among the best of each. No arithmetic.
// Errors: InvalidArgument if dims or dtypes disagree; the order is not looked at. num_tokens == 0 does
// nothing.
#pragma once

#include "ops/op_context.h"
#include "tensor/tensor.h"

namespace dsv4::ops {

struct MergeCandidatesArgs {
  TensorView candidates;
  TensorView selected;
  DSV4_OPERANDS(candidates, selected)
};

Status Validate(const MergeCandidatesArgs& args);

}  // namespace dsv4::ops
