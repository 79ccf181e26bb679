// The trunk: how an architecture puts the blocks of the graph together to a layer, and what travels from layer to layer.
#pragma once

#include <functional>

#include "model/checkpoint/weights.h"
#include "model/graph/step_context.h"

namespace dsv4::model {

// The state of a pass in front of a layer. Layers change it in place; stages, taps and drafters take it over.
struct TrunkState {
  TensorView streams;  // [n, H, D], residual.
  // The last choice among entries, I32 [n, index_topk], which later layers may use; null where every visible entry takes part.
  TensorView selected = {};
  // Weights by which the next sub-layer mixes the streams, F32 [n, H]; null where each makes its own.
  TensorView pre = {};
  // Memory beside `pre`, for those that attention's hyper-connection makes for the experts'. It is one for all layers, so that
  // their tensors lie at the same addresses. A backend may then fuse a layer's end with the next one's beginning.
  TensorView attn_pre = {};
  // The last candidate blocks, I32 [n, candidate_topk_blocks]; null where no layer makes any.
  TensorView candidates = {};
  // Memory for choices that outlive their layer; null where no layer uses another's (MakeSelectionRoom).
  TensorView selection_room = {};
};

// The per-architecture part of the graph (model/arch/<name>/trunk.cc).
struct Trunk {
  bool cuts_tail =
      false;  // Whether layers behind the last maker of entries run on the tail of a prompt alone (pass_tail.h).
  // Completes the state in front of the first layer, streams being there; null where they are all of it.
  Status (*begin)(const LayerStep& step, TrunkState& state) = nullptr;
  // Runs a decoder layer: attention and the mixture of experts, each wrapped by its hyper-connection. `weights` are those of the step's plan.
  // `before_change`, unless empty, is called while the streams are still those in front of the layer. A
  // backend fuses nothing there with the ops that follow.
  Status (*run_layer)(const LayerStep& step, const LayerWeights& weights, TrunkState& state,
                      const std::function<Status()>& before_change);
  // The streams mixed to one row in front of the final norm, [n, D].
  Result<TensorView> (*collapse)(const LayerStep& step, const HyperConnectionWeights& head,
                                 const TrunkState& state);
};

// Allocates `selection_room` and `candidates` for a pass whose layers share choices or candidates.
Status MakeSelectionRoom(const LayerStep& step, std::span<const LayerPlan> layers, TrunkState& state);

// Attention and the mixture of experts, each wrapped by its hyper-connection: Trunk::run_layer of an architecture that has no more. Where
// the state has weights `pre`, each sub-layer mixes the streams by those of the one before it.
Status RunSublayers(const LayerStep& step, const LayerWeights& weights, TrunkState& state,
                    const std::function<Status()>& before_change);

// A sub-layer's input of all rows, normed, from the mixed streams `u` of the rows that are here.
Result<TensorView> SublayerInput(const LayerStep& step, std::string_view name, const TensorView& u,
                                 const TensorView& weight);

}  // namespace dsv4::model
