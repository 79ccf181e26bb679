#include "model/attention.h"

#include <cmath>
#include <vector>

#include "model/compressor.h"
#include "model/indexer.h"

namespace dsv4::model {
namespace {

// What is made of attention's input alone.
struct Projections {
  TensorView q_lora;  // [n, q_lora_rank], normed.
  TensorView kv;      // [n, head_dim]
  CompressorRows compressor;
  IndexerProjections indexer;
};

// Products of the same tokens follow each other, so that a backend can do them at once.
Result<Projections> Project(const LayerStep& step, const LayerWeights& weights, const TensorView& u) {
  Projections p;
  DSV4_ASSIGN_OR_RETURN(p.q_lora, step.Linear("attn.q_a", u, weights.wq_a, step.dtype()));
  DSV4_ASSIGN_OR_RETURN(p.kv, step.Linear("attn.kv_a", u, weights.wkv, step.dtype()));
  if (weights.indexer.has_value()) {
    DSV4_ASSIGN_OR_RETURN(p.indexer, ProjectIndexer(step, *weights.indexer, u));
  }
  if (weights.compressor.has_value()) {
    DSV4_ASSIGN_OR_RETURN(p.compressor, ProjectRows(step, CompressorPart::kMain, *weights.compressor, u));
  }
  DSV4_TRY(step.RmsNorm("attn.q_lora", p.q_lora, weights.q_norm));
  return p;
}

// Queries [n, the heads of this shard, d], which are up-projected already, are normed and rotated in place.
Status FinishQueries(const LayerStep& step, const TensorView& q) {
  const auto eps = static_cast<float>(step.config().rms_norm_eps);
  DSV4_RETURN_IF_ERROR(step.Run("attn.q_norm", step.ops().head_rms_norm, {.x = q, .y = q, .eps = eps}));
  step.Observe("attn.q_norm", q);
  DSV4_RETURN_IF_ERROR(step.Rope("attn.q", q, step.plan().positions, /*inverse=*/false));
  step.Observe("attn.q", q);
  return {};
}

// The window rows kv [n, head_dim] of this pass: normed, rotated, rounded, and stored.
Status StoreWindow(const LayerStep& step, const LayerWeights& weights, const TensorView& kv) {
  const ModelConfig& config = step.config();
  DSV4_RETURN_IF_ERROR(step.RmsNorm("attn.kv_norm", kv, weights.kv_norm));
  DSV4_RETURN_IF_ERROR(step.Rope("attn.kv", kv.Reshaped({kv.shape[0], 1, config.head_dim}),
                                 step.plan().positions,
                                 /*inverse=*/false));
  if (step.context().simulate()) {
    DSV4_RETURN_IF_ERROR(
        step.Run("attn.kv", step.ops().simulate_fp8, {.x = kv, .num_columns = config.nope_head_dim()}));
  }
  step.Observe("attn.kv", kv);
  std::vector<RowRun> runs;
  for (const PassSequence& sequence : step.plan().sequences) {
    sequence.state->WindowRuns(step.state_layer(), sequence.token_begin, &runs);
  }
  return step.StoreRows("attn.kv", kv, runs);
}

std::vector<ops::AttentionSequence> Sequences(const LayerStep& step) {
  std::vector<ops::AttentionSequence> sequences;
  for (const PassSequence& sequence : step.plan().sequences) {
    sequences.push_back({.token_begin = sequence.token_begin,
                         .num_tokens = sequence.num_tokens,
                         .first_position = sequence.first_position,
                         .window = sequence.state->Ring(step.state_layer(), kv::RingKind::kWindow),
                         .entries = {}});
    if (step.layer_config().compressed()) {
      sequences.back().entries = sequence.state->Pages(step.state_layer(), kv::PageKind::kEntries);
    }
  }
  return sequences;
}

float SoftmaxScale(const ModelConfig& config) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
}

// Where shards divide the entries: every shard attends with all heads to the entries that it keeps, and gets what all found for its
// own heads; the window, which everybody has, it adds itself.
Status AttendTogether(const LayerStep& step, const LayerWeights& weights, const TensorView& q,
                      const TensorView& selected, std::span<const ops::AttentionSequence> sequences,
                      const TensorView& o) {
  const ModelConfig& config = step.config();
  const Shards& shards = step.context().shards;
  const int64_t n = q.shape[0];
  const int64_t num_heads = q.shape[1];
  const int64_t width = config.head_dim + 2;  // Of a part.
  const Arena::Scope scope(step.context().arena);
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView parts,
                               step.NewTensor(DType::kF32, {shards.entries.count + 1, n, num_heads, width}));
  {
    const Arena::Scope all_heads(step.context().arena);
    DSV4_ASSIGN_OR_RETURN_STATUS(
        const TensorView all_q,
        GatherColumns(step, "attn.q", q.Reshaped({n, num_heads * config.head_dim}), weights.splits.heads));
    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView mine,
                                 step.NewTensor(DType::kF32, {n, config.num_attention_heads * width}));
    DSV4_RETURN_IF_ERROR(step.Run("attn.entries", step.ops().attention_part,
                                  {.q = all_q.Reshaped({n, config.num_attention_heads, config.head_dim}),
                                   .selected = selected,
                                   .part = mine.Reshaped({n, config.num_attention_heads, width}),
                                   .softmax_scale = SoftmaxScale(config),
                                   .window_size = 0,
                                   .ratio = step.layer_config().compress_ratio,
                                   .shard = shards.entries,
                                   .sequences = sequences}));
    ColumnSplit split = weights.splits.heads;
    for (int64_t& begin : split.begins) begin = begin / config.head_dim * width;
    DSV4_RETURN_IF_ERROR(ScatterColumns(step, mine, split, parts.Rows(1, shards.entries.count + 1)));
  }
  if (num_heads == 0) return {};
  DSV4_RETURN_IF_ERROR(step.Run("attn.window", step.ops().attention_part,
                                {.q = q,
                                 .selected = {},
                                 .part = parts.Rows(0, 1).Reshaped({n, num_heads, width}),
                                 .softmax_scale = SoftmaxScale(config),
                                 .window_size = config.sliding_window,
                                 .ratio = 0,
                                 .shard = {},
                                 .sequences = sequences}));
  return step.Run("attn.o", step.ops().merge_attention, {.parts = parts, .sink = weights.attn_sink, .o = o});
}

// Softmax over the visible set of every query, rotated back. `selected` is null where every visible entry takes part.
Result<TensorView> Attend(const LayerStep& step, const LayerWeights& weights, const TensorView& q,
                          const TensorView& selected) {
  const ModelConfig& config = step.config();
  const std::vector<ops::AttentionSequence> sequences = Sequences(step);
  DSV4_ASSIGN_OR_RETURN(const TensorView o, step.NewTensor(step.dtype(), q.shape));
  if (step.context().shards.divide_entries() && step.layer_config().compressed()) {
    DSV4_TRY(AttendTogether(step, weights, q, selected, sequences, o));
  } else if (q.shape[1] > 0) {
    DSV4_TRY(step.Run("attn.o", step.ops().attention,
                      {.q = q,
                       .sink = weights.attn_sink,
                       .selected = selected,
                       .o = o,
                       .softmax_scale = SoftmaxScale(config),
                       .window_size = config.sliding_window,
                       .ratio = step.layer_config().compress_ratio,
                       .sequences = sequences}));
  }
  if (q.shape[1] == 0) return o;
  step.Observe("attn.o", o);
  // Keys are values and carry their rotation; undoing the query's leaves the relative one.
  DSV4_TRY(step.Rope("attn.o_unrotated", o, step.plan().positions, /*inverse=*/true));
  step.Observe("attn.o_unrotated", o);
  return o;
}

// [n, the shard's groups * o_lora_rank]; a shard may have none.
Result<TensorView> LowRankOutput(const LayerStep& step, const LayerWeights& weights, const TensorView& o) {
  const ModelConfig& config = step.config();
  const int64_t n = o.shape[0];
  const int64_t num_groups = weights.wo_a.rows / config.o_lora_rank;
  DSV4_ASSIGN_OR_RETURN(const TensorView o_lora,
                        step.NewTensor(step.dtype(), {n, num_groups, config.o_lora_rank}));
  if (num_groups == 0) return o_lora.Reshaped({n, 0});
  DSV4_TRY(step.Run(
      "attn.o_lora", step.ops().grouped_linear,
      {.x = o.Reshaped({n, num_groups, config.o_group_dim()}), .weight = &weights.wo_a, .y = o_lora}));
  step.Observe("attn.o_lora", o_lora);
  return o_lora.Reshaped({n, weights.wo_a.rows});
}

}  // namespace

Result<TensorView> Attention(const LayerStep& step, const LayerWeights& weights, const TensorView& u) {
  const ModelConfig& config = step.config();
  const int64_t n = u.shape[0];
  // A shard may have no output group, and then no heads; its part of the output projection it has all the same.
  const int64_t num_heads = weights.wq_b.rows / config.head_dim;
  DSV4_ASSIGN_OR_RETURN(const TensorView q, step.NewTensor(step.dtype(), {n, num_heads, config.head_dim}));
  TensorView selected;
  if (weights.indexer.has_value()) {
    DSV4_ASSIGN_OR_RETURN(selected, step.NewTensor(DType::kI32, {n, config.index_topk}));
  }
  {
    const Arena::Scope scope(step.context().arena);
    DSV4_ASSIGN_OR_RETURN(const Projections p, Project(step, weights, u));
    if (num_heads > 0) {
      const TensorView flat = q.Reshaped({n, weights.wq_b.rows});
      DSV4_TRY(step.Run("attn.q_b", step.ops().linear, {.x = p.q_lora, .weight = &weights.wq_b, .y = flat}));
      step.Observe("attn.q_b", flat);
    }
    TensorView indexer_queries;
    if (weights.indexer.has_value()) {
      DSV4_ASSIGN_OR_RETURN(indexer_queries, ProjectIndexerQueries(step, *weights.indexer, p.q_lora));
    }
    if (num_heads > 0) DSV4_TRY(FinishQueries(step, q));
    DSV4_TRY(StoreWindow(step, weights, p.kv));
    if (weights.compressor.has_value()) {
      DSV4_TRY(Compress(step, CompressorPart::kMain, *weights.compressor, p.compressor));
    }
    if (weights.indexer.has_value()) {
      DSV4_TRY(SelectEntries(step, *weights.indexer, p.indexer, indexer_queries, selected));
    }
  }
  DSV4_ASSIGN_OR_RETURN(const TensorView o, Attend(step, weights, q, selected));
  DSV4_ASSIGN_OR_RETURN(TensorView o_lora, LowRankOutput(step, weights, o));
  if (!step.context().shards.alone() && weights.splits.attn_out.total() == 0) {
    DSV4_ASSIGN_OR_RETURN(const TensorView y, step.NewTensor(step.dtype(), {n, config.hidden_size}));
    DSV4_ASSIGN_OR_RETURN(const TensorView part,
                          PartOfSum(step, "attn.out", o_lora, weights.wo_b, config.hidden_size));
    DSV4_TRY(SumShards(step, "attn.out", part, y));
    return y;
  }
  DSV4_ASSIGN_OR_RETURN(o_lora, GatherColumns(step, "attn.o_lora", o_lora, weights.splits.o_lora));
  DSV4_ASSIGN_OR_RETURN(const TensorView y, step.Linear("attn.out", o_lora, weights.wo_b, step.dtype()));
  return GatherColumns(step, "attn.out", y, weights.splits.attn_out);
}

}  // namespace dsv4::model
