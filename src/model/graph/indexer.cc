// Indexer of a layer: projected queries and head weights, scores, and the choice on one rank or over shards.
#include "model/graph/indexer.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "model/graph/all_entries.h"

namespace dsv4::model {
namespace {

// Rotated and rounded, in place: [n, heads, width].
Result<TensorView> Queries(const LayerStep& step, const TensorView& flat) {
  const ModelConfig& config = step.config();
  const Range rows = IndexerRows(step);
  const int64_t n = flat.shape[0];
  const TensorView q = flat.Reshaped({n, config.index_n_heads, config.index_head_dim});
  DSV4_TRY(step.Rope("attn.indexer.q", q, step.plan().positions.Rows(rows.begin, rows.end),
                     /*inverse=*/false));
  if (step.context().simulate()) {
    DSV4_TRY(step.Run("attn.indexer.q", step.ops().hadamard_fp4,
                      {.x = q.Reshaped({n * config.index_n_heads, config.index_head_dim}),
                       .rotate = config.hadamard_keys,
                       .group = config.key_rows.group}));
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

// The choice among keys that are here; `candidates` may be null where the plan has none.
Status Select(const LayerStep& step, const TensorView& q, const TensorView& head_weights,
              const TensorView& candidates, const TensorView& selected,
              std::span<const ops::IndexerSequence> sequences) {
  const LayerPlan& layer = step.layer_plan();
  return step.Run("attn.indexer.selected", step.ops().indexer_select,
                  {.q = q,
                   .weights = head_weights,
                   .selected = selected,
                   .ratio = layer.ratio,
                   .sequences = sequences,
                   .within = layer.bound_by_candidates() ? candidates : TensorView(),
                   .best = layer.makes_candidates() ? candidates : TensorView(),
                   .block_size = step.config().candidate_block_size});
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
                                 .ratio = step.layer_plan().ratio,
                                 .shard = shards.entries,
                                 .sequences = sequences}));
  const ColumnSplit split =
      SplitColumns(shards.entries.count * top_k, top_k, static_cast<int>(shards.entries.count));
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView all,
                               GatherColumns(step, "attn.indexer.candidates", candidates, split));
  return step.Run("attn.indexer.selected", step.ops().merge_candidates,
                  {.candidates = all, .selected = selected});
}

void KeysOfSequences(const PassPlan& plan, const PassArrays::Of& of, std::vector<ops::IndexerSequence>* out) {
  for (const PassSequence& sequence : plan.sequences) {
    out->push_back({.token_begin = sequence.token_begin,
                    .num_tokens = sequence.num_tokens,
                    .first_position = sequence.first_position,
                    .keys = sequence.state->Pages(of.keys, kv::PageKind::kIndexerKeys)});
  }
}

// Whether shards divide the tokens of the pass, not the keys. A shard's tokens must be enough to keep a
// device busy. Keys must not be many more bytes than the candidates that would be exchanged. All decide
// alike.
bool DividesTokens(const LayerStep& step) {
  const ModelConfig& config = step.config();
  const int64_t n = step.plan().num_tokens;
  if (!step.context().shards.divide_entries() || n < step.policy().min_index_tokens) return false;
  int64_t num_keys = 0;
  for (const PassSequence& sequence : step.plan().sequences)
    num_keys += (sequence.first_position + sequence.num_tokens) / step.layer_plan().ratio;
  return num_keys * config.index_head_dim * ElementBytes(step.dtype()) <=
         step.policy().most_key_bytes * n * config.index_topk * ElementBytes(DType::kI64);
}

// How many consecutive tokens of a long pass each shard chooses for, in order: as even as can be by what they cost. Later ones see more keys.
std::vector<int64_t> TokensOfShards(const LayerStep& step) {
  constexpr int64_t kUnit = 16;  // Tokens that stay together.
  const int64_t token_cost = step.policy().index_token_cost;
  const int64_t num_shards = step.context().shards.entries.count;
  std::vector<std::pair<int64_t, int64_t>> units;  // Tokens, and what those up to here cost.
  int64_t cost = 0;
  for (const PassSequence& sequence : step.plan().sequences) {
    for (int64_t i = 0; i < sequence.num_tokens; i += kUnit) {
      const int64_t tokens = std::min(kUnit, sequence.num_tokens - i);
      cost += tokens * (token_cost + (sequence.first_position + i) / step.layer_plan().ratio);
      units.emplace_back(tokens, cost);
    }
  }
  std::vector<int64_t> num_tokens(static_cast<size_t>(num_shards));
  int64_t shard = 0;
  auto units_left = static_cast<int64_t>(units.size());
  for (const auto& [tokens, cost_to_here] : units) {
    num_tokens[static_cast<size_t>(shard)] += tokens;
    --units_left;
    // Every shard has some, however dear the last ones are.
    const bool has_its_part = cost_to_here * num_shards >= cost * (shard + 1);
    if (shard + 1 < num_shards && (has_its_part || units_left == num_shards - shard - 1)) ++shard;
  }
  return num_tokens;
}

// Every shard chooses for some tokens among all keys.
Status SelectByRows(const LayerStep& step, const TensorView& q, const TensorView& head_weights,
                    const TensorView& selected) {
  const Range rows = IndexerRows(step);
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const AllEntries all,
      GatherEntries(step, "attn.indexer.keys", kv::PageKind::kIndexerKeys, step.plan().sequences));
  const std::span<const ops::IndexerSequence> here = step.Make(KeysOfSequences);
  std::vector<ops::IndexerSequence> sequences(here.begin(), here.end());
  for (size_t i = 0; i < sequences.size(); ++i) sequences[i].keys = all.sequences[i];
  std::vector<ops::IndexerSequence> some;
  const std::span<const ops::IndexerSequence> mine =
      SequencesOf(rows, std::span<const ops::IndexerSequence>(sequences), &some);
  const int64_t top_k = selected.shape[1];
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView chosen, step.NewTensor(DType::kI32, {rows.size(), top_k}));
  DSV4_RETURN_IF_ERROR(Select(step, q, head_weights, {}, chosen, mine));
  std::vector<int64_t> piece_bytes;
  for (const int64_t num_rows : TokensOfShards(step))
    piece_bytes.push_back(num_rows * top_k * ElementBytes(DType::kI32));
  return step.context().shards.group->AllGather(Bytes(chosen), 1, piece_bytes, Bytes(selected));
}

}  // namespace

Range IndexerRows(const LayerStep& step) {
  if (!DividesTokens(step)) return {0, step.plan().num_tokens};
  return PartOf(TokensOfShards(step), static_cast<int>(step.context().shards.entries.index));
}

Result<TensorView> ProjectHeadWeights(const LayerStep& step, const IndexerWeights& weights,
                                      const TensorView& u) {
  const Range rows = IndexerRows(step);
  DSV4_ASSIGN_OR_RETURN(const TensorView head_weights,
                        step.NewTensor(step.dtype(), {rows.size(), step.config().index_n_heads}));
  DSV4_TRY(step.Run("attn.indexer.weights", step.ops().linear,
                    {.x = u.Rows(rows.begin, rows.end), .weight = &weights.weights_proj, .y = head_weights}));
  return head_weights;
}

Result<TensorView> ProjectIndexerQueries(const LayerStep& step, const IndexerWeights& weights,
                                         const TensorView& q_lora) {
  return step.Linear("attn.indexer.q_b", q_lora, weights.wq_b, step.dtype());
}

Status SelectEntries(const LayerStep& step, const TensorView& head_weights, const TensorView& queries,
                     const TensorView& candidates, const TensorView& selected) {
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView q, Queries(step, queries));
  DSV4_RETURN_IF_ERROR(ScaleHeadWeights(step, head_weights));

  const std::span<const ops::IndexerSequence> sequences = step.Make(KeysOfSequences);
  if (DividesTokens(step)) {
    DSV4_RETURN_IF_ERROR(SelectByRows(step, q, head_weights, selected));
  } else if (step.context().shards.divide_entries()) {
    DSV4_RETURN_IF_ERROR(SelectTogether(step, q, head_weights, sequences, selected));
  } else {
    DSV4_RETURN_IF_ERROR(Select(step, q, head_weights, candidates, selected, sequences));
    if (step.layer_plan().makes_candidates()) step.Observe("attn.indexer.candidates", candidates);
  }
  step.Observe("attn.indexer.selected", selected);
  return {};
}

}  // namespace dsv4::model
