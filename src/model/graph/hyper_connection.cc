// Calls of hc_pre, hc_post, hc_head and collapse with a layer's weights.
#include "model/graph/hyper_connection.h"

#include <string>

namespace dsv4::model {

Result<HcMix> HcPre(const LayerStep& step, std::string_view part, const HyperConnectionWeights& weights,
                    const TensorView& streams, const DelayedMix& delayed) {
  const ModelConfig& config = step.config();
  const int64_t n = streams.shape[0];
  const int64_t hc = config.hc_mult;
  const std::string name(part);
  HcMix mix;
  DSV4_ASSIGN_OR_RETURN(mix.u, step.NewTensor(step.dtype(), {n, config.hidden_size}));
  DSV4_ASSIGN_OR_RETURN(mix.post, step.NewTensor(DType::kF32, {n, hc}));
  DSV4_ASSIGN_OR_RETURN(mix.comb, step.NewTensor(DType::kF32, {n, hc, hc}));
  DSV4_TRY(step.Run(name + ".hc_pre", step.ops().hc_pre,
                    {.streams = streams,
                     .fn = weights.fn,
                     .scale = weights.scale,
                     .base = weights.base,
                     .u = mix.u,
                     .post = mix.post,
                     .comb = mix.comb,
                     .norm_eps = static_cast<float>(config.rms_norm_eps),
                     .hc_eps = static_cast<float>(config.hc_eps),
                     .sinkhorn_iters = static_cast<int>(config.hc_sinkhorn_iters),
                     .given = delayed.given,
                     .pre = delayed.pre}));
  step.Observe(name + ".hc_pre", mix.u);
  step.Observe(name + ".hc_post", mix.post);
  step.Observe(name + ".hc_comb", mix.comb);
  return mix;
}

Status HcPost(const LayerStep& step, std::string_view part, const HcMix& mix, const TensorView& y,
              const TensorView& streams) {
  const std::string name = std::string(part) + ".streams";
  DSV4_RETURN_IF_ERROR(
      step.Run(name, step.ops().hc_post,
               {.y = y, .residual = streams, .post = mix.post, .comb = mix.comb, .out = streams}));
  step.Observe(name, streams);
  return {};
}

Result<TensorView> HcHead(const LayerStep& step, const HyperConnectionWeights& weights,
                          const TensorView& streams) {
  const ModelConfig& config = step.config();
  DSV4_ASSIGN_OR_RETURN(const TensorView y,
                        step.NewTensor(step.dtype(), {streams.shape[0], config.hidden_size}));
  DSV4_TRY(step.Run("head.hc", step.ops().hc_head,
                    {.streams = streams,
                     .fn = weights.fn,
                     .scale = weights.scale,
                     .base = weights.base,
                     .y = y,
                     .norm_eps = static_cast<float>(config.rms_norm_eps),
                     .hc_eps = static_cast<float>(config.hc_eps)}));
  step.Observe("head.hc", y);
  return y;
}

Result<TensorView> HcCollapse(const LayerStep& step, const TensorView& given, const TensorView& streams) {
  DSV4_ASSIGN_OR_RETURN(const TensorView y,
                        step.NewTensor(step.dtype(), {streams.shape[0], step.config().hidden_size}));
  DSV4_TRY(step.Run("head.hc", step.ops().hc_head, {.streams = streams, .y = y, .given = given}));
  step.Observe("head.hc", y);
  return y;
}

}  // namespace dsv4::model
