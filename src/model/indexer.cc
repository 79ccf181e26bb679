#include "model/indexer.h"

#include <cmath>
#include <vector>

namespace dsv4::model {
namespace {

// Rotated and rounded, in place: [n, heads, width].
Result<TensorView> Queries(const LayerStep& step, const TensorView& flat) {
  const ModelConfig& config = step.config();
  const int64_t n = flat.shape[0];
  const TensorView q = flat.Reshaped({n, config.index_n_heads, config.index_head_dim});
  DSV4_TRY(step.Rope("attn.indexer.q", q, step.plan().positions, /*inverse=*/false));
  if (step.context().simulate()) {
    DSV4_TRY(step.Run("attn.indexer.q", step.ops().hadamard_fp4,
                      {.x = q.Reshaped({n * config.index_n_heads, config.index_head_dim})}));
  }
  step.Observe("attn.indexer.q", q);
  return q;
}

// Scaled for the dot products' width and for the number of heads, in place.
Status ScaleHeadWeights(const LayerStep& step, const TensorView& w) {
  const ModelConfig& config = step.config();
  const double factor =
      1.0 / std::sqrt(static_cast<double>(config.index_head_dim) * static_cast<double>(config.index_n_heads));
  DSV4_RETURN_IF_ERROR(step.Run("attn.indexer.weights", step.ops().scale,
                                {.x = w, .y = w, .factor = static_cast<float>(factor)}));
  step.Observe("attn.indexer.weights", w);
  return {};
}

// Every shard scores the keys that it keeps and names its best; all choose from the best of all.
Status SelectTogether(const LayerStep& step, const TensorView& q, const TensorView& head_weights,
                      std::span<const ops::IndexerSequence> sequences, const TensorView& selected) {
  const Shards& shards = step.context().shards;
  const int64_t n = selected.shape[0];
  const int64_t top_k = selected.shape[1];
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView candidates, step.NewTensor(DType::kI64, {n, top_k}));
  DSV4_RETURN_IF_ERROR(step.Run("attn.indexer.candidates", step.ops().indexer_candidates,
                                {.q = q,
                                 .weights = head_weights,
                                 .candidates = candidates,
                                 .ratio = step.layer_config().compress_ratio,
                                 .shard = shards.entries,
                                 .sequences = sequences}));
  const ColumnSplit split =
      SplitColumns(shards.entries.count * top_k, top_k, static_cast<int>(shards.entries.count));
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView all,
                               GatherColumns(step, "attn.indexer.candidates", candidates, split));
  return step.Run("attn.indexer.selected", step.ops().merge_candidates,
                  {.candidates = all, .selected = selected});
}

}  // namespace

Result<IndexerProjections> ProjectIndexer(const LayerStep& step, const IndexerWeights& weights,
                                          const TensorView& u) {
  IndexerProjections projections;
  DSV4_ASSIGN_OR_RETURN(projections.rows, ProjectRows(step, CompressorPart::kIndexer, weights.compressor, u));
  DSV4_ASSIGN_OR_RETURN(projections.head_weights,
                        step.NewTensor(step.dtype(), {u.shape[0], step.config().index_n_heads}));
  DSV4_TRY(step.Run("attn.indexer.weights", step.ops().linear,
                    {.x = u, .weight = &weights.weights_proj, .y = projections.head_weights}));
  return projections;
}

Result<TensorView> ProjectIndexerQueries(const LayerStep& step, const IndexerWeights& weights,
                                         const TensorView& q_lora) {
  return step.Linear("attn.indexer.q_b", q_lora, weights.wq_b, step.dtype());
}

Status StoreIndexerKeys(const LayerStep& step, const IndexerWeights& weights,
                        const IndexerProjections& projections) {
  return Compress(step, CompressorPart::kIndexer, weights.compressor, projections.rows);
}

Status SelectEntries(const LayerStep& step, const IndexerProjections& projections, const TensorView& queries,
                     const TensorView& selected) {
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView q, Queries(step, queries));
  DSV4_RETURN_IF_ERROR(ScaleHeadWeights(step, projections.head_weights));

  std::vector<ops::IndexerSequence> sequences;
  for (const PassSequence& sequence : step.plan().sequences) {
    sequences.push_back({.token_begin = sequence.token_begin,
                         .num_tokens = sequence.num_tokens,
                         .first_position = sequence.first_position,
                         .keys = sequence.state->Pages(step.state_layer(), kv::PageKind::kIndexerKeys)});
  }
  if (step.context().shards.divide_entries()) {
    DSV4_RETURN_IF_ERROR(SelectTogether(step, q, projections.head_weights, sequences, selected));
  } else {
    DSV4_RETURN_IF_ERROR(step.Run("attn.indexer.selected", step.ops().indexer_select,
                                  {.q = q,
                                   .weights = projections.head_weights,
                                   .selected = selected,
                                   .ratio = step.layer_config().compress_ratio,
                                   .sequences = sequences}));
  }
  step.Observe("attn.indexer.selected", selected);
  return {};
}

}  // namespace dsv4::model
