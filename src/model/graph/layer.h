// A decoder layer: attention and the mixture of experts, each wrapped by its hyper-connection.
#pragma once

#include <functional>

#include "model/checkpoint/weights.h"
#include "model/graph/step_context.h"

namespace dsv4::model {

// Updates the streams [n, H, D] of the pass in place. `weights` are those of the step's plan (layer_plan.h). `before_change`, unless empty: is
// called while the streams are still those in front of the layer, where a backend fuses nothing with what comes next.
Status RunLayer(const LayerStep& step, const LayerWeights& weights, const TensorView& streams,
                const std::function<Status()>& before_change = {});

}  // namespace dsv4::model
