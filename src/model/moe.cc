#include "model/moe.h"

#include <limits>

namespace dsv4::model {
namespace {

struct Routing {
  TensorView indices;  // [n, num_experts_per_tok] I32
  TensorView weights;  // [n, num_experts_per_tok] F32
};

Result<Routing> Route(const LayerStep& step, const LayerWeights& weights, const TensorView& logits) {
  const ModelConfig& config = step.config();
  const int64_t n = logits.shape[0];
  Routing routing;
  DSV4_ASSIGN_OR_RETURN(routing.indices, step.NewTensor(DType::kI32, {n, config.num_experts_per_tok}));
  DSV4_ASSIGN_OR_RETURN(routing.weights, step.NewTensor(DType::kF32, {n, config.num_experts_per_tok}));
  const bool by_token = step.layer_config().hash_routed;
  DSV4_TRY(step.Run("ffn.router.indices", step.ops().router,
                    {.logits = logits,
                     .bias = weights.gate_bias,
                     .hash_table = weights.tid2eid,
                     .token_ids = by_token ? step.plan().token_ids : TensorView{},
                     .indices = routing.indices,
                     .weights = routing.weights,
                     .route_scale = static_cast<float>(config.routed_scaling_factor)}));
  step.Observe("ffn.router.indices", routing.indices);
  step.Observe("ffn.router.weights", routing.weights);
  return routing;
}

// The SwiGLU clamp; 0 in the configuration means none.
float SwigluLimit(const ModelConfig& config) {
  return config.swiglu_limit > 0 ? static_cast<float>(config.swiglu_limit)
                                 : std::numeric_limits<float>::infinity();
}

// Both projections of the shared expert, [n, width].
struct SharedHidden {
  TensorView gate;
  TensorView up;
};

Result<SharedHidden> ProjectShared(const LayerStep& step, const ExpertWeights& expert, const TensorView& u) {
  SharedHidden hidden;
  DSV4_ASSIGN_OR_RETURN(hidden.gate, step.NewTensor(step.dtype(), {u.shape[0], expert.w1.rows}));
  DSV4_ASSIGN_OR_RETURN(hidden.up, step.NewTensor(step.dtype(), {u.shape[0], expert.w3.rows}));
  DSV4_TRY(step.Run("ffn.shared", step.ops().linear, {.x = u, .weight = &expert.w1, .y = hidden.gate}));
  DSV4_TRY(step.Run("ffn.shared", step.ops().linear, {.x = u, .weight = &expert.w3, .y = hidden.up}));
  return hidden;
}

// Writes y [n, D]; `hidden` is used up.
Status SharedExpert(const LayerStep& step, const ExpertWeights& expert, const SharedHidden& hidden,
                    const TensorView& y) {
  const float limit = step.context().clamp_shared_expert ? SwigluLimit(step.config())
                                                         : std::numeric_limits<float>::infinity();
  DSV4_RETURN_IF_ERROR(
      step.Run("ffn.shared", step.ops().swiglu,
               {.gate = hidden.gate, .up = hidden.up, .row_weights = {}, .y = hidden.gate, .limit = limit}));
  DSV4_RETURN_IF_ERROR(
      step.Run("ffn.shared", step.ops().linear, {.x = hidden.gate, .weight = &expert.w2, .y = y}));
  step.Observe("ffn.shared", y);
  return {};
}

}  // namespace

Result<TensorView> MixtureOfExperts(const LayerStep& step, const LayerWeights& weights, const TensorView& u) {
  DSV4_ASSIGN_OR_RETURN(const TensorView y, step.NewTensor(step.dtype(), u.shape));
  const Arena::Scope scope(step.context().arena);
  // Products of the same tokens follow each other, so that a backend can do them at once.
  DSV4_ASSIGN_OR_RETURN(const TensorView logits,
                        step.Linear("ffn.router.logits", u, weights.gate, DType::kF32));
  DSV4_ASSIGN_OR_RETURN(const SharedHidden shared, ProjectShared(step, weights.shared_expert, u));
  DSV4_ASSIGN_OR_RETURN(const Routing routing, Route(step, weights, logits));
  DSV4_ASSIGN_OR_RETURN(const TensorView routed, step.NewTensor(DType::kF32, u.shape));
  DSV4_TRY(step.Run("ffn.routed", step.ops().routed_experts,
                    {.x = u,
                     .indices = routing.indices,
                     .weights = routing.weights,
                     .experts = weights.experts,
                     .limit = SwigluLimit(step.config()),
                     .y = routed}));
  step.Observe("ffn.routed", routed);
  DSV4_TRY(SharedExpert(step, weights.shared_expert, shared, y));
  DSV4_TRY(step.Run("ffn.out", step.ops().moe_combine, {.routed = routed, .shared = y, .y = y}));
  step.Observe("ffn.out", y);
  return y;
}

}  // namespace dsv4::model
