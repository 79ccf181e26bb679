// Expert sub-layer: routing, routed and shared experts, and their sum on one rank or over shards.
#include "model/graph/moe.h"

#include <limits>

#include "model/graph/routed.h"

namespace dsv4::model {
namespace {

Result<Routing> Route(const LayerStep& step, const LayerWeights& weights, const TensorView& logits) {
  const ModelConfig& config = step.config();
  const int64_t n = logits.shape[0];
  DSV4_ASSIGN_OR_RETURN(const Routing routing, NewRouting(step, n));
  const int64_t top_k = config.ExpertsPerToken(step.layer_plan());
  const bool by_token = step.layer_plan().router == RouterKind::kTokenIds;
  DSV4_TRY(step.Run("ffn.router.indices", step.ops().router,
                    {.logits = logits,
                     .bias = weights.gate_bias,
                     .hash_table = weights.tid2eid,
                     .token_ids = by_token ? step.plan().token_ids : TensorView{},
                     .indices = routing.indices,
                     .weights = routing.weights,
                     .route_scale = static_cast<float>(config.routed_scaling_factor),
                     .temperature = static_cast<float>(config.gate_temp),
                     .sum_eps = static_cast<float>(config.router_eps),
                     .normalise = config.norm_topk_prob && (top_k > 1 || config.norm_single_expert)}));
  step.Observe("ffn.router.indices", routing.indices);
  step.Observe("ffn.router.weights", routing.weights);
  return routing;
}

// Input that the shared expert's down projection reads, [n, the width of this shard].
Result<TensorView> SharedHidden(const LayerStep& step, const ExpertWeights& expert, const TensorView& u) {
  DSV4_ASSIGN_OR_RETURN(const TensorView gate, step.NewTensor(step.dtype(), {u.shape[0], expert.w1.rows}));
  DSV4_ASSIGN_OR_RETURN(const TensorView up, step.NewTensor(step.dtype(), {u.shape[0], expert.w3.rows}));
  if (expert.w1.rows == 0) return gate;
  DSV4_TRY(step.Run("ffn.shared", step.ops().linear, {.x = u, .weight = &expert.w1, .y = gate}));
  DSV4_TRY(step.Run("ffn.shared", step.ops().linear, {.x = u, .weight = &expert.w3, .y = up}));
  const float limit = step.context().clamp_shared_expert ? SwigluLimit(step.config())
                                                         : std::numeric_limits<float>::infinity();
  DSV4_TRY(step.Run("ffn.shared", step.ops().swiglu,
                    {.gate = gate, .up = up, .row_weights = {}, .y = gate, .limit = limit}));
  if (step.context().shards.alone()) step.Observe("ffn.shared.hidden", gate);
  return gate;
}

// [n, D]: in y, or of several shards what they put together.
Result<TensorView> SharedExpert(const LayerStep& step, const LayerWeights& weights, const TensorView& hidden,
                                const TensorView& y) {
  const ExpertWeights& expert = weights.shared_expert;
  if (step.context().shards.alone()) {
    DSV4_TRY(step.Run("ffn.shared", step.ops().linear, {.x = hidden, .weight = &expert.w2, .y = y}));
    step.Observe("ffn.shared", y);
    return y;
  }
  DSV4_ASSIGN_OR_RETURN(const TensorView all_hidden,
                        GatherColumns(step, "ffn.shared.hidden", hidden, weights.splits.shared_hidden));
  DSV4_ASSIGN_OR_RETURN(const TensorView part,
                        step.Linear("ffn.shared", all_hidden, expert.w2, step.dtype()));
  return GatherColumns(step, "ffn.shared", part, weights.splits.shared_out);
}

// Adds up the parts of both sums together, where columns are divided.
Status SumOfParts(const LayerStep& step, const LayerWeights& weights, const TensorView& hidden,
                  const TensorView& routed, const TensorView& y) {
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const TensorView shared,
      PartOfSum(step, "ffn.shared", hidden, weights.shared_expert.w2, step.config().hidden_size));
  DSV4_RETURN_IF_ERROR(
      step.Run("ffn.out", step.ops().moe_combine, {.routed = routed, .shared = shared, .y = shared}));
  return SumShards(step, "ffn.out", shared, y);
}

}  // namespace

Result<TensorView> MixtureOfExperts(const LayerStep& step, const LayerWeights& weights, const TensorView& u) {
  DSV4_ASSIGN_OR_RETURN(const TensorView y,
                        step.NewTensor(step.dtype(), {step.context().own_rows().size(), u.shape[1]}));
  const Arena::Scope scope(step.context().arena);
  // Products of the same tokens follow each other, and the activation stands beside the router, so that a
  // backend can do them at once.
  DSV4_ASSIGN_OR_RETURN(const TensorView logits,
                        step.Linear("ffn.router.logits", u, weights.gate, DType::kF32));
  DSV4_ASSIGN_OR_RETURN(const TensorView shared, SharedHidden(step, weights.shared_expert, u));
  DSV4_ASSIGN_OR_RETURN(const Routing routing, Route(step, weights, logits));
  DSV4_ASSIGN_OR_RETURN(const TensorView routed, RoutedExperts(step, weights, u, routing));
  if (!step.context().shards.alone() && weights.splits.shared_out.total() == 0) {
    DSV4_TRY(SumOfParts(step, weights, shared, routed, y));
    return y;
  }
  step.Observe("ffn.routed", routed);
  DSV4_ASSIGN_OR_RETURN(const TensorView shared_out, SharedExpert(step, weights, shared, y));
  DSV4_TRY(step.Run("ffn.out", step.ops().moe_combine, {.routed = routed, .shared = shared_out, .y = y}));
  step.Observe("ffn.out", y);
  return y;
}

}  // namespace dsv4::model
