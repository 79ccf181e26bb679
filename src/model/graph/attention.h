// Attention of one layer: low-rank queries of many heads over one shared key-value row per token. Keys are
// the sliding window and, in compressed layers, the compressed entries. Then follows the grouped low-rank
// output projection (model.md 5).
#pragma once

#include "model/checkpoint/weights.h"
#include "model/graph/trunk.h"

namespace dsv4::model {

// u [n, D], normed, gives [n, D], or what of it belongs to streams that are here (StepContext::own_rows).
// Appends this pass's rows to the sequences. A layer that chooses among its entries leaves its choice in
// `state`; one that uses another's takes it from there.
Result<TensorView> Attention(const LayerStep& step, const LayerWeights& weights, const TensorView& u,
                             TrunkState& state);

// The window rows of u alone, and nothing attended to.
Status AppendWindow(const LayerStep& step, const LayerWeights& weights, const TensorView& u);

}  // namespace dsv4::model
