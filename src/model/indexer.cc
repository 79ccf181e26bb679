#include "model/indexer.h"

#include <cmath>
#include <vector>

#include "model/compressor.h"

namespace dsv4::model {
namespace {

Result<TensorView> Queries(const LayerStep& step, const IndexerWeights& weights, const TensorView& q_lora) {
  const ModelConfig& config = step.config();
  const int64_t n = q_lora.shape[0];
  DSV4_ASSIGN_OR_RETURN(const TensorView flat,
                        step.Linear("attn.indexer.q_b", q_lora, weights.wq_b, step.dtype()));
  const TensorView q = flat.Reshaped({n, config.index_n_heads, config.index_head_dim});
  DSV4_TRY(step.Rope("attn.indexer.q", q, step.plan().positions, /*inverse=*/false));
  if (step.context().simulate()) {
    DSV4_TRY(step.Run("attn.indexer.q", step.ops().hadamard_fp4,
                      {.x = q.Reshaped({n * config.index_n_heads, config.index_head_dim})}));
  }
  step.Observe("attn.indexer.q", q);
  return q;
}

// weights_proj u, scaled for the dot products' width and for the number of heads.
Result<TensorView> HeadWeights(const LayerStep& step, const IndexerWeights& weights, const TensorView& u) {
  const ModelConfig& config = step.config();
  DSV4_ASSIGN_OR_RETURN(const TensorView w, step.NewTensor(step.dtype(), {u.shape[0], config.index_n_heads}));
  DSV4_TRY(
      step.Run("attn.indexer.weights", step.ops().linear, {.x = u, .weight = &weights.weights_proj, .y = w}));
  const double factor =
      1.0 / std::sqrt(static_cast<double>(config.index_head_dim) * static_cast<double>(config.index_n_heads));
  DSV4_TRY(step.Run("attn.indexer.weights", step.ops().scale,
                    {.x = w, .y = w, .factor = static_cast<float>(factor)}));
  step.Observe("attn.indexer.weights", w);
  return w;
}

}  // namespace

Result<TensorView> SelectEntries(const LayerStep& step, const IndexerWeights& weights, const TensorView& u,
                                 const TensorView& q_lora) {
  DSV4_ASSIGN_OR_RETURN(const TensorView selected,
                        step.NewTensor(DType::kI32, {u.shape[0], step.config().index_topk}));
  const Arena::Scope scope(step.context().arena);
  DSV4_TRY(Compress(step, CompressorPart::kIndexer, weights.compressor, u));
  DSV4_ASSIGN_OR_RETURN(const TensorView q, Queries(step, weights, q_lora));
  DSV4_ASSIGN_OR_RETURN(const TensorView head_weights, HeadWeights(step, weights, u));

  std::vector<ops::IndexerSequence> sequences;
  for (const PassSequence& sequence : step.plan().sequences) {
    sequences.push_back({.token_begin = sequence.token_begin,
                         .num_tokens = sequence.num_tokens,
                         .first_position = sequence.first_position,
                         .keys = sequence.state->Pages(step.layer(), kv::PageKind::kIndexerKeys)});
  }
  DSV4_TRY(step.Run("attn.indexer.selected", step.ops().indexer_select,
                    {.q = q,
                     .weights = head_weights,
                     .selected = selected,
                     .ratio = step.layer_config().compress_ratio,
                     .sequences = sequences}));
  step.Observe("attn.indexer.selected", selected);
  return selected;
}

}  // namespace dsv4::model
