// V4.1's layer: a sub-layer mixes the streams by the weights that the one before it has made.
#include "model/graph/trunk.h"

#include <vector>

#include "model/arch/v41/v41.h"
#include "model/graph/attention.h"
#include "model/graph/draft_rows.h"
#include "model/graph/engram.h"
#include "model/graph/hyper_connection.h"
#include "model/graph/moe.h"

namespace dsv4::model {
namespace {

// In front of the first layer all streams are equal, and the first one is taken.
Status Begin(const LayerStep& step, TrunkState& state) {
  const int64_t n = state.streams.shape[0];
  const int64_t hc = step.config().hc_mult;
  std::vector<float> first(static_cast<size_t>(n * hc));
  for (int64_t t = 0; t < n; ++t) first[static_cast<size_t>(t * hc)] = 1.0F;
  DSV4_ASSIGN_OR_RETURN_STATUS(state.pre, UploadToStep(step, DType::kF32, {n, hc}, first.data()));
  return {};
}

Status RunLayer(const LayerStep& step, const LayerWeights& weights, TrunkState& state,
                const std::function<Status()>& before_change) {
  if (step.layer_plan().has_engram()) DSV4_RETURN_IF_ERROR(Engram(step, weights, state));
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView attn_pre, step.NewTensor(DType::kF32, state.pre.shape));
  {
    const Arena::Scope scope(step.context().arena);
    DSV4_ASSIGN_OR_RETURN_STATUS(const HcMix mix, HcPre(step, "attn", weights.hc_attn, state.streams,
                                                        {.given = state.pre, .pre = attn_pre}));
    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView u,
                                 SublayerInput(step, "attn.norm", mix.u, weights.attn_norm));
    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView y, Attention(step, weights, u, state));
    if (before_change) DSV4_RETURN_IF_ERROR(before_change());
    DSV4_RETURN_IF_ERROR(HcPost(step, "attn", mix, y, state.streams));
  }
  const Arena::Scope scope(step.context().arena);
  DSV4_ASSIGN_OR_RETURN_STATUS(const HcMix mix, HcPre(step, "ffn", weights.hc_ffn, state.streams,
                                                      {.given = attn_pre, .pre = state.pre}));
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView u, SublayerInput(step, "ffn.norm", mix.u, weights.ffn_norm));
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView y, MixtureOfExperts(step, weights, u));
  return HcPost(step, "ffn", mix, y, state.streams);
}

Result<TensorView> Collapse(const LayerStep& step, const HyperConnectionWeights&, const TrunkState& state) {
  return HcCollapse(step, state.pre, state.streams);
}

constexpr Trunk kTrunk = {.cuts_tail = true, .begin = Begin, .run_layer = RunLayer, .collapse = Collapse};

}  // namespace

const Trunk& V41Trunk() { return kTrunk; }

}  // namespace dsv4::model
