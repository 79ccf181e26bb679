// PlaceWeights: hands loaded weights to a backend. Linear weights go through its PrepareWeight op; small tensors move to its
// memory (on the host they stay where they are).
#pragma once

#include "model/weights.h"
#include "ops/op_table.h"

namespace dsv4::model {

// In place. Errors name the weight.
Status PlaceWeights(const ops::Backend& backend, ModelWeights& weights);

// Identifies the weights by their small tensors and the embedding of a few tokens, so that rows computed by another model
// of the same shape are recognised. Host memory: call it before PlaceWeights.
uint64_t WeightsFingerprint(const ModelWeights& weights);

}  // namespace dsv4::model
