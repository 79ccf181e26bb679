// V4's layer: each sub-layer mixes the streams by weights of its own.
#include "model/graph/trunk.h"

#include "model/arch/v4/v4.h"
#include "model/graph/attention.h"
#include "model/graph/hyper_connection.h"
#include "model/graph/moe.h"
#include "model/graph/routed.h"

namespace dsv4::model {
namespace {

Status RunLayer(const LayerStep& step, const LayerWeights& weights, TrunkState& state,
                const std::function<Status()>& before_change) {
  if (step.plan().num_tokens == 0) return ServeExperts(step, weights);
  {
    const Arena::Scope scope(step.context().arena);
    DSV4_ASSIGN_OR_RETURN_STATUS(const HcMix mix, HcPre(step, "attn", weights.hc_attn, state.streams));
    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView u,
                                 SublayerInput(step, "attn.norm", mix.u, weights.attn_norm));
    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView y, Attention(step, weights, u, state));
    if (before_change) DSV4_RETURN_IF_ERROR(before_change());
    DSV4_RETURN_IF_ERROR(HcPost(step, "attn", mix, y, state.streams));
  }
  const Arena::Scope scope(step.context().arena);
  DSV4_ASSIGN_OR_RETURN_STATUS(const HcMix mix, HcPre(step, "ffn", weights.hc_ffn, state.streams));
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView u, SublayerInput(step, "ffn.norm", mix.u, weights.ffn_norm));
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView y, MixtureOfExperts(step, weights, u));
  return HcPost(step, "ffn", mix, y, state.streams);
}

Result<TensorView> Collapse(const LayerStep& step, const HyperConnectionWeights& head,
                            const TrunkState& state) {
  return HcHead(step, head, state.streams);
}

constexpr Trunk kTrunk = {.run_layer = RunLayer, .collapse = Collapse};

}  // namespace

const Trunk& V4Trunk() { return kTrunk; }

}  // namespace dsv4::model
