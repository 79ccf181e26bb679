// The lightning indexer of CSA layers: scores the compressed entries that a query may see with queries and keys of its
// own, and keeps the best (architecture.md 7).
#pragma once

#include "model/step_context.h"
#include "model/weights.h"

namespace dsv4::model {

// u [n, D] is attention's input, q_lora [n, q_lora_rank] its normed low-rank query. Stores the keys of entries completed
// in this pass first, so that a token sees an entry it closes itself. Returns I32 [n, index_topk]: entries in ascending
// order, then -1.
Result<TensorView> SelectEntries(const LayerStep& step, const IndexerWeights& weights, const TensorView& u,
                                 const TensorView& q_lora);

}  // namespace dsv4::model
