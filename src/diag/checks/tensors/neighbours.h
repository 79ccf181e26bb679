// Mixing matrices of the residual streams, beside those of the half-layers next to them.
//
// All half-layers read the same streams, which change slowly. So the matrices that read them (hc_attn_fn, hc_ffn_fn) are like their
// neighbours'. They are less like those farther away, and no other order of the half-layers is as good. Two that fit better in each other's
// place are exchanged.
#pragma once

#include <vector>

#include "diag/checks/tensors/holes.h"
#include "model/checkpoint/weights.h"

namespace dsv4::diag {

// Looks at 4 layers or more. Says nothing where neighbours are not alike, as random ones are not.
std::vector<Hole> LookForExchangedNeighbours(const std::vector<model::LayerWeights>& layers);

}  // namespace dsv4::diag
