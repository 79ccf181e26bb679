// Expert parallelism beside data-parallel attention (Placement::divide_sequences): tokens go to the shards of
// their experts (dispatch), and the expert outputs come back (combine).
#pragma once

#include <functional>

#include "model/graph/routed.h"

namespace dsv4::model {

// y [n, D] F32 = what the experts of all shards add to tokens x [n, D], which all shards have.
using SumOfTerms = std::function<Status(const TensorView& x, const Routing& routing, const TensorView& y)>;

// Sums over the experts of each of this shard's tokens to y [n, D] F32; n may be 0. All shards call it
// together: their terms come to a token's shard. If `by_lists` is given, all shards have the sums of all
// tokens through it.
Status ExpertsOfSequences(const LayerStep& step, const LayerWeights& weights, const TensorView& u,
                          const Routing& routing, const SumOfTerms& by_lists, const TensorView& y);

}  // namespace dsv4::model
