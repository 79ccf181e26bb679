// The feed-forward sub-layer. A router (by score, or by token id in hash layers) chooses a few of many SwiGLU
// experts. One shared expert sees every token (model.md 8).
#pragma once

#include "model/checkpoint/weights.h"
#include "model/graph/step_context.h"

namespace dsv4::model {

// u [n, D], normed, gives [n, D], or what of it belongs to streams that are here (StepContext::own_rows).
Result<TensorView> MixtureOfExperts(const LayerStep& step, const LayerWeights& weights, const TensorView& u);

}  // namespace dsv4::model
