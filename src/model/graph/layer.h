// A decoder layer: attention and the mixture of experts, each wrapped by its hyper-connection.
#pragma once

#include "model/checkpoint/weights.h"
#include "model/graph/step_context.h"

namespace dsv4::model {

// Updates the streams [n, H, D] of the pass in place. `weights` are those of the step's plan (layer_plan.h).
Status RunLayer(const LayerStep& step, const LayerWeights& weights, const TensorView& streams);

}  // namespace dsv4::model
