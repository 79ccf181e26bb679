// Norms and the matrices that meet them, and two layers whose norms have changed places.
//
// The gains of a norm and the sizes of what they scale are trained together. A channel's gain tells of the column that reads it, and of the
// row that makes it. Which way they go is a matter of the training, so the layers themselves say it: the correlation of the middle one. What
// all layers have in common is taken out, and what is left fits no other layer. So a norm that fits another layer's matrices, while that
// layer's fits these, is in the wrong place, or the matrices are.
#pragma once

#include <vector>

#include "diag/checks/tensors/holes.h"
#include "model/checkpoint/weights.h"

namespace dsv4::diag {

// Norms in front of attention and experts, of query latents and of keys, in 4 layers or more. Says nothing about random weights, norms of
// one number, and layers whose norms fit others as well as their own.
std::vector<Hole> LookForExchangedNorms(const std::vector<model::LayerWeights>& layers);

}  // namespace dsv4::diag
