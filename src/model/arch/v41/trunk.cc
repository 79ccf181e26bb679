// V4.1's layer: a sub-layer mixes the streams by the weights that the one before it has made.
#include "model/graph/trunk.h"

#include <bit>
#include <utility>
#include <vector>

#include "model/arch/v41/v41.h"
#include "model/graph/draft_rows.h"
#include "model/graph/engram.h"
#include "model/graph/hyper_connection.h"

namespace dsv4::model {
namespace {

// In front of the first layer all streams are equal, and the first one is taken.
Status Begin(const LayerStep& step, TrunkState& state) {
  const int64_t n = state.streams.shape[0];
  const int64_t hc = step.config().hc_mult;
  std::vector<int32_t> first(static_cast<size_t>(n * hc));
  for (int64_t t = 0; t < n; ++t) first[static_cast<size_t>(t * hc)] = std::bit_cast<int32_t>(1.0F);
  DSV4_ASSIGN_OR_RETURN_STATUS(state.pre, UploadToStep(step, DType::kF32, {n, hc},
                                                       step.context().arrays.Fixed(std::move(first)).data()));
  DSV4_ASSIGN_OR_RETURN_STATUS(state.attn_pre, step.NewTensor(DType::kF32, state.pre.shape));
  return {};
}

Status RunLayer(const LayerStep& step, const LayerWeights& weights, TrunkState& state,
                const std::function<Status()>& before_change) {
  if (step.layer_plan().has_engram()) DSV4_RETURN_IF_ERROR(Engram(step, weights, state));
  return RunSublayers(step, weights, state, before_change);
}

Result<TensorView> CollapseStreams(const LayerStep& step, const HyperConnectionWeights&,
                                   const TrunkState& state) {
  return HcCollapse(step, state.pre, state.streams);
}

constexpr Trunk kTrunk41 = {
    .cuts_tail = true, .begin = Begin, .run_layer = RunLayer, .collapse = CollapseStreams};

}  // namespace

const Trunk& V41Trunk() { return kTrunk41; }

}  // namespace dsv4::model
