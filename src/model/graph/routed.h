// The routed experts of one layer, on one rank or over the shards of a stage. Shards are expert parallel by
// id, or tensor parallel by columns. "Terms" are expert outputs before the combine.
#pragma once

#include "model/checkpoint/weights.h"
#include "model/graph/step_context.h"

namespace dsv4::model {

struct Routing {
  TensorView indices;  // [n, num_experts_per_tok] I32
  TensorView weights;  // [n, num_experts_per_tok] F32
};

// Room for the routing of n tokens; where sequences are divided in one piece, weights behind indices, so that
// they can be sent together.
Result<Routing> NewRouting(const LayerStep& step, int64_t n);
// Indices and weights of n tokens in I32 [2 n, num_experts_per_tok].
Routing RoutingIn(const TensorView& both);

// The SwiGLU clamp; 0 in the configuration means none, which is infinity here.
float SwigluLimit(const ModelConfig& config);

// Tokens of a pass up to which shards of experts by id gather terms whole (ModelOptions::max_gathered_terms);
// 0 for more shards than sum_terms takes parts.
int64_t MostGatheredTokens(const ModelConfig& config, DType dtype, int num_shards,
                           int64_t max_gathered_terms);

// [n, num_experts_per_tok, D] of u's dtype: the expert outputs of this shard; rows of others' are
// unspecified. The host waits for nothing. For experts by id.
Result<TensorView> OwnTerms(const LayerStep& step, const LayerWeights& weights, const TensorView& u,
                            const Routing& routing);
// Sums all shards' terms to y [n, D] F32. The terms are `parts` [shards, n, num_experts_per_tok, D] in order
// of rank. The tokens' experts are `indices`. The result is bit for bit that of one rank.
Status SumTermParts(const LayerStep& step, const LayerWeights& weights, const TensorView& parts,
                    const TensorView& indices, const TensorView& y);

// F32 [n, D]: the sum over each token's experts, or this shard's part of it.
//   kById       a shard computes its expert outputs, and all take the sum over all terms in
//               ascending order of expert. The op does so on one rank: the result is the same bit for bit.
//   kByColumns  a shard computes all terms from its columns, each rounded, and adds them up: its part. The sum over the shards is
//               the caller's.
// Where sequences are divided, u and the result are of this shard's tokens, and its experts serve those of
// all shards.
Result<TensorView> RoutedExperts(const LayerStep& step, const LayerWeights& weights, const TensorView& u,
                                 const Routing& routing);
// The same of a shard that has no tokens in this pass, for the others' tokens.
Status ServeExperts(const LayerStep& step, const LayerWeights& weights);

}  // namespace dsv4::model
