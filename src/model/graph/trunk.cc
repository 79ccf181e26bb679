// Parts that every architecture's trunk shares.
#include "model/graph/trunk.h"

#include <algorithm>

#include "model/graph/attention.h"
#include "model/graph/hyper_connection.h"
#include "model/graph/moe.h"
#include "model/graph/routed.h"

namespace dsv4::model {

Status MakeSelectionRoom(const LayerStep& step, std::span<const LayerPlan> layers, TrunkState& state) {
  const bool shared = std::ranges::any_of(
      layers, [](const LayerPlan& layer) { return layer.reads_selection() && !layer.selects(); });
  if (std::ranges::any_of(layers, &LayerPlan::makes_candidates)) {
    DSV4_ASSIGN_OR_RETURN_STATUS(
        state.candidates,
        step.NewTensor(DType::kI32, {step.plan().num_tokens, step.config().candidate_topk_blocks}));
  }
  if (!shared) return {};
  DSV4_ASSIGN_OR_RETURN_STATUS(
      state.selection_room, step.NewTensor(DType::kI32, {step.plan().num_tokens, step.config().index_topk}));
  return {};
}

Status RunSublayers(const LayerStep& step, const LayerWeights& weights, TrunkState& state,
                    const std::function<Status()>& before_change) {
  if (step.plan().num_tokens == 0) return ServeExperts(step, weights);
  // A prompt's tail has fewer rows.
  const TensorView attn_pre = state.pre.is_null() ? TensorView() : state.attn_pre.Rows(0, state.pre.shape[0]);
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

Result<TensorView> SublayerInput(const LayerStep& step, std::string_view name, const TensorView& u,
                                 const TensorView& weight) {
  DSV4_TRY(step.RmsNorm(name, u, weight));
  if (!step.context().divide_streams()) return u;
  return GatherRows(step, u, step.context().stream_rows);
}

}  // namespace dsv4::model
