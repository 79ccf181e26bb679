#include "model/graph/layer.h"

#include "model/graph/attention.h"
#include "model/graph/hyper_connection.h"
#include "model/graph/moe.h"
#include "model/graph/routed.h"

namespace dsv4::model {
namespace {

// What a sub-layer reads of all rows, from the streams of those that are here.
Result<TensorView> NormedInput(const LayerStep& step, std::string_view name, const HcMix& mix,
                               const TensorView& weight) {
  DSV4_TRY(step.RmsNorm(name, mix.u, weight));
  if (!step.context().divide_streams()) return mix.u;
  return GatherRows(step, mix.u, step.context().stream_rows);
}

}  // namespace

Status RunLayer(const LayerStep& step, const LayerWeights& weights, const TensorView& streams,
                const std::function<Status()>& before_change) {
  if (step.plan().num_tokens == 0) return ServeExperts(step, weights);
  {
    const Arena::Scope scope(step.context().arena);
    DSV4_ASSIGN_OR_RETURN_STATUS(const HcMix mix, HcPre(step, "attn", weights.hc_attn, streams));
    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView u, NormedInput(step, "attn.norm", mix, weights.attn_norm));
    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView y, Attention(step, weights, u));
    if (before_change) DSV4_RETURN_IF_ERROR(before_change());
    DSV4_RETURN_IF_ERROR(HcPost(step, "attn", mix, y, streams));
  }
  const Arena::Scope scope(step.context().arena);
  DSV4_ASSIGN_OR_RETURN_STATUS(const HcMix mix, HcPre(step, "ffn", weights.hc_ffn, streams));
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView u, NormedInput(step, "ffn.norm", mix, weights.ffn_norm));
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView y, MixtureOfExperts(step, weights, u));
  return HcPost(step, "ffn", mix, y, streams);
}

}  // namespace dsv4::model
