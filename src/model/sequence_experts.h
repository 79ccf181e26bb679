// Routed experts where every shard has sequences of its own (Placement::divide_sequences) and experts of its own: tokens go to the experts,
// and what those add to them comes back.
#pragma once

#include <functional>

#include "model/routed.h"

namespace dsv4::model {

// Writes what the experts of all shards add to the tokens of all shards, [all tokens, D] F32, through lists of the hosts (routed.cc).
using SumByLists = std::function<Status(const TensorView& u, const Routing& routing, const TensorView& y)>;

// y [n, D] F32 = the sum over each of this shard's tokens' experts; n may be 0. All shards call it together.
Status ExpertsOfSequences(const LayerStep& step, const LayerWeights& weights, const TensorView& u,
                          const Routing& routing, const SumByLists& by_lists, const TensorView& y);

}  // namespace dsv4::model
