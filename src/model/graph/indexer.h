// The lightning indexer of CSA layers. It scores the compressed entries that a query may see with queries and
// keys of its own, and keeps the best (model.md 7).
#pragma once

#include "model/checkpoint/weights.h"
#include "model/graph/step_context.h"

namespace dsv4::model {

// The m tokens of the pass for which this shard scores keys. They are all tokens, unless shards bring divided
// keys together for a long pass and divide its tokens instead.
Range IndexerRows(const LayerStep& step);
// The weights of the heads, of attention's input u [n, D]: [the rows of IndexerRows, index_n_heads], not yet
// scaled.
Result<TensorView> ProjectHeadWeights(const LayerStep& step, const IndexerWeights& weights,
                                      const TensorView& u);

// Up-projects the normed low-rank query of its tokens, q_lora [m, q_lora_rank]: [m, index_n_heads *
// index_head_dim].
Result<TensorView> ProjectIndexerQueries(const LayerStep& step, const IndexerWeights& weights,
                                         const TensorView& q_lora);

// `queries` are ProjectIndexerQueries'. Writes `selected`, I32 [n, index_topk]: entries in ascending order,
// then -1. All shards have all of it. `candidates` (TrunkState) are written or obeyed, as the layer's plan
// says.
Status SelectEntries(const LayerStep& step, const TensorView& head_weights, const TensorView& queries,
                     const TensorView& candidates, const TensorView& selected);

}  // namespace dsv4::model
