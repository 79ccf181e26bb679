// The lightning indexer of CSA layers: scores the compressed entries that a query may see with queries and keys of its
// own, and keeps the best (model.md 7).
#pragma once

#include "model/checkpoint/weights.h"
#include "model/graph/compressor.h"
#include "model/graph/step_context.h"

namespace dsv4::model {

// What the indexer makes of attention's input u [n, D] alone.
struct IndexerProjections {
  CompressorRows rows;
  TensorView head_weights;  // [the rows of IndexerRows, index_n_heads], not yet scaled.
};

// The tokens of the pass for which this shard scores keys, m of them: all, unless shards that divide the keys bring them together for a
// long pass and divide its tokens instead.
Range IndexerRows(const LayerStep& step);
Result<IndexerProjections> ProjectIndexer(const LayerStep& step, const IndexerWeights& weights,
                                          const TensorView& u);

// Up-projects the normed low-rank query of its tokens, q_lora [m, q_lora_rank]: [m, index_n_heads * index_head_dim].
Result<TensorView> ProjectIndexerQueries(const LayerStep& step, const IndexerWeights& weights,
                                         const TensorView& q_lora);

// Stores the keys of the entries completed in this pass: before SelectEntries, so that a token sees an entry it closes itself.
Status StoreIndexerKeys(const LayerStep& step, const IndexerWeights& weights,
                        const IndexerProjections& projections);

// `queries` are ProjectIndexerQueries'. Writes `selected`, I32 [n, index_topk]: entries in ascending order, then -1. All shards have all of it.
Status SelectEntries(const LayerStep& step, const IndexerProjections& projections, const TensorView& queries,
                     const TensorView& selected);

}  // namespace dsv4::model
