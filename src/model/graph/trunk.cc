// Parts that every architecture's trunk shares.
#include "model/graph/trunk.h"

#include <algorithm>

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

Result<TensorView> SublayerInput(const LayerStep& step, std::string_view name, const TensorView& u,
                                 const TensorView& weight) {
  DSV4_TRY(step.RmsNorm(name, u, weight));
  if (!step.context().divide_streams()) return u;
  return GatherRows(step, u, step.context().stream_rows);
}

}  // namespace dsv4::model
