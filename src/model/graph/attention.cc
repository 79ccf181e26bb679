// Attention sub-layer: queries, window rows, entries, the choice among them, shards' parts, and the low-rank
// output.
#include "model/graph/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "model/graph/all_entries.h"
#include "model/graph/compressor.h"
#include "model/graph/indexer.h"

namespace dsv4::model {
namespace {

// Tensors made of attention's input alone.
struct Projections {
  TensorView q_lora;  // [n, q_lora_rank], normed.
  TensorView kv;      // [n, head_dim]
  CompressorRows compressor;
  CompressorRows keys;
  TensorView head_weights;  // The indexer's (ProjectHeadWeights).
};

// Products of the same tokens follow each other, so that a backend can do them at once.
Result<Projections> Project(const LayerStep& step, const LayerWeights& weights, const TensorView& u) {
  Projections p;
  DSV4_ASSIGN_OR_RETURN(p.q_lora, step.Linear("attn.q_a", u, weights.wq_a, step.dtype()));
  DSV4_ASSIGN_OR_RETURN(p.kv, step.Linear("attn.kv_a", u, weights.wkv, step.dtype()));
  const bool from_latents = step.layer_plan().key_source == KeySource::kLatents;
  if (step.layer_plan().makes_keys() && !from_latents) {
    DSV4_ASSIGN_OR_RETURN(p.keys, ProjectRows(step, CompressorPart::kIndexer, *weights.key_compressor, u));
  }
  if (step.layer_plan().selects()) {
    DSV4_ASSIGN_OR_RETURN(p.head_weights, ProjectHeadWeights(step, *weights.indexer, u));
  }
  if (step.layer_plan().makes_entries()) {
    DSV4_ASSIGN_OR_RETURN(p.compressor, ProjectRows(step, CompressorPart::kMain, *weights.compressor, u));
  }
  DSV4_TRY(step.RmsNorm("attn.q_lora", p.q_lora, weights.q_norm));
  return p;
}

// Queries [n, the heads of this shard, d], which are up-projected already, are normed and rotated in place.
Status FinishQueries(const LayerStep& step, const TensorView& q) {
  if (step.config().norm_query_heads) {
    const auto eps = static_cast<float>(step.config().rms_norm_eps);
    DSV4_RETURN_IF_ERROR(step.Run("attn.q_norm", step.ops().head_rms_norm, {.x = q, .y = q, .eps = eps}));
    step.Observe("attn.q_norm", q);
  }
  DSV4_RETURN_IF_ERROR(step.Rope("attn.q", q, step.plan().positions, /*inverse=*/false));
  step.Observe("attn.q", q);
  return {};
}

// Window rows of every sequence of the pass while it runs. They are in its own ring, or in one of the arena's
// where that has no room for so many tokens. A ring of the arena also has the rows before them that they see.
// Empty: all are in their own rings.
using Windows = std::vector<RingRows>;

Result<Windows> MakeWindows(const LayerStep& step) {
  Windows windows;
  if (step.plan().windows_fit) return windows;
  for (const PassSequence& sequence : step.plan().sequences) {
    windows.push_back(sequence.state->Ring(step.layer_plan().window, kv::RingKind::kWindow));
    if (sequence.state->WindowFits()) continue;
    const RingRows own = windows.back();
    RingRows& window = windows.back();
    const int64_t first_seen =
        std::max<int64_t>(0, sequence.first_position - (step.config().sliding_window - 1));
    window.capacity = sequence.first_position + sequence.num_tokens - first_seen;
    // Rows as they are stored.
    const int64_t row_bytes = own.RowBytes();
    DSV4_ASSIGN_OR_RETURN(const TensorView rows, step.NewTensor(DType::kU8, {window.capacity, row_bytes}));
    window.data = rows.data;
    // The rows that are in both.
    std::vector<RowRun> runs;
    for (int64_t p = first_seen; p < sequence.first_position;) {
      const int64_t slot = p % own.capacity;
      const int64_t end = std::min(sequence.first_position, p + own.capacity - slot);
      kv::AppendRingRuns(window, p, end, slot, &runs);
      p = end;
    }
    const TensorView source =
        TensorView::Contiguous(own.data, DType::kU8, {own.capacity, row_bytes}, rows.device);
    DSV4_TRY(step.StoreRows("attn.window", source, runs));
  }
  return windows;
}

void OwnWindowRuns(const PassPlan& plan, const PassArrays::Of& of, std::vector<RowRun>* out) {
  for (const PassSequence& sequence : plan.sequences)
    sequence.state->WindowRuns(of.layer, sequence.token_begin, out);
}

// Each row of a block sees what its last row sees: a window that is longer by the block.
void AttendingBlocks(const PassPlan& plan, const PassArrays::Of& of,
                     std::vector<ops::AttentionSequence>* out) {
  for (const PassSequence& sequence : plan.sequences) {
    for (int64_t i = 0; i < sequence.num_tokens; ++i) {
      out->push_back({.token_begin = sequence.token_begin + i,
                      .num_tokens = 1,
                      .first_position = sequence.first_position + sequence.num_tokens - 1,
                      .window = sequence.state->Ring(of.layer, kv::RingKind::kWindow),
                      .entries = {}});
    }
  }
}

// `which`: 1 where the layer has entries.
void AttendingSequences(const PassPlan& plan, const PassArrays::Of& of,
                        std::vector<ops::AttentionSequence>* out) {
  for (const PassSequence& sequence : plan.sequences) {
    out->push_back({.token_begin = sequence.token_begin,
                    .num_tokens = sequence.num_tokens,
                    .first_position = sequence.first_position,
                    .window = sequence.state->Ring(of.layer, kv::RingKind::kWindow),
                    .entries = {}});
    if (of.which != 0) out->back().entries = sequence.state->Pages(of.entries, kv::PageKind::kEntries);
  }
}

// The window rows kv [n, head_dim] of this pass: normed, rotated, rounded, and stored.
Status StoreWindow(const LayerStep& step, const LayerWeights& weights, const TensorView& kv,
                   const Windows& windows) {
  const ModelConfig& config = step.config();
  DSV4_RETURN_IF_ERROR(step.RmsNorm("attn.kv_norm", kv, weights.kv_norm));
  DSV4_RETURN_IF_ERROR(step.Rope("attn.kv", kv.Reshaped({kv.shape[0], 1, config.head_dim}),
                                 step.plan().positions,
                                 /*inverse=*/false));
  if (step.context().simulate()) {
    DSV4_RETURN_IF_ERROR(
        step.Run("attn.kv", step.ops().simulate_fp8,
                 {.x = kv, .num_columns = config.window_rows.num_coded, .group = config.window_rows.group}));
  }
  step.Observe("attn.kv", kv);
  const std::span<const RowRun> own = step.Make(OwnWindowRuns);
  const CacheFormat format = step.plan().sequences.empty()
                                 ? CacheFormat(kv.dtype)
                                 : step.plan().sequences[0].state->layout().window_format;
  if (windows.empty()) return step.StoreCacheRows("attn.kv", kv, own, format);
  std::vector<RowRun> runs(own.begin(), own.end());
  for (size_t i = 0; i < windows.size(); ++i) {
    const PassSequence& sequence = step.plan().sequences[i];
    if (sequence.state->WindowFits()) continue;
    const int64_t end = sequence.first_position + sequence.num_tokens;
    kv::AppendRingRuns(windows[i], sequence.first_position, end, sequence.token_begin, &runs);
  }
  return step.StoreCacheRows("attn.kv", kv, runs, format);
}

float SoftmaxScale(const ModelConfig& config) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
}

// Attention over a part of the keys of queries q: the entries that this shard has, whose rows are in
// `sequences`. One shard, in turn by layers, adds the window.
Status AttendToPart(const LayerStep& step, const TensorView& q, const TensorView& selected,
                    std::span<const ops::AttentionSequence> sequences, const TensorView& part) {
  const EntryShard& shard = step.context().shards.entries;
  const bool window = step.layer() % shard.count == shard.index;
  return step.Run("attn.part", step.ops().attention_part,
                  {.q = q,
                   .selected = selected,
                   .part = part.Reshaped({q.shape[0], q.shape[1], q.shape[2] + 2}),
                   .softmax_scale = SoftmaxScale(step.config()),
                   .window_size = window ? step.config().sliding_window : 0,
                   .ratio = step.layer_plan().ratio,
                   .shard = shard,
                   .sequences = sequences});
}

// Queries go to the entries. This shard attends with all heads to its part. It gets the results of all shards
// for its own heads, parts [shards, n, heads, d + 2].
Status SendQueries(const LayerStep& step, const ColumnSplit& heads, const TensorView& q,
                   const TensorView& selected, std::span<const ops::AttentionSequence> sequences,
                   const TensorView& parts) {
  const ModelConfig& config = step.config();
  const Arena::Scope scope(step.context().arena);
  const int64_t n = q.shape[0];
  const int64_t width = config.head_dim + 2;
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const TensorView all_q,
      GatherColumns(step, "attn.q", q.Reshaped({n, q.shape[1] * config.head_dim}), heads));
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView mine,
                               step.NewTensor(DType::kF32, {n, config.num_attention_heads * width}));
  DSV4_RETURN_IF_ERROR(AttendToPart(step, all_q.Reshaped({n, config.num_attention_heads, config.head_dim}),
                                    selected, sequences, mine));
  ColumnSplit split = heads;
  for (int64_t& begin : split.begins) begin = begin / config.head_dim * width;
  return ScatterColumns(step, mine, split, parts);
}

// Whether a choice is as long as it may be, also within candidate blocks, of which the newest may be short.
bool ChoicesAreFull(const ModelConfig& config) {
  return config.candidate_block_size == 0 ||
         (config.candidate_topk_blocks - 1) * config.candidate_block_size + 1 >= config.index_topk;
}

// Softmax over the visible set of every query, with entries where `sequences` say.
Status AttendAlone(const LayerStep& step, const LayerWeights& weights, const TensorView& q,
                   const TensorView& selected, std::span<const ops::AttentionSequence> sequences,
                   const TensorView& o) {
  if (q.shape[1] == 0) return {};
  return step.Run("attn.o", step.ops().attention,
                  {.q = q,
                   .sink = weights.attn_sink,
                   .selected = selected,
                   .o = o,
                   .softmax_scale = SoftmaxScale(step.config()),
                   .window_size = step.config().sliding_window + step.layer_plan().block_rows,
                   .ratio = step.layer_plan().ratio,
                   .sequences = sequences,
                   .ordered = !selected.is_null() && ChoicesAreFull(step.config())});
}

// Entries come to the queries: this shard gets all shards' entries and attends to all of them with its own
// heads, with one rank's numbers. `rows`: the same sequences in the plan.
Status FetchEntries(const LayerStep& step, const LayerWeights& weights, const TensorView& q,
                    const TensorView& selected, std::span<const PassSequence> rows,
                    std::span<const ops::AttentionSequence> sequences, const TensorView& o) {
  const Arena::Scope scope(step.context().arena);
  DSV4_ASSIGN_OR_RETURN_STATUS(const AllEntries all,
                               GatherEntries(step, "attn.entries", kv::PageKind::kEntries, rows));
  std::vector<ops::AttentionSequence> gathered(sequences.begin(), sequences.end());
  for (size_t i = 0; i < gathered.size(); ++i) gathered[i].entries = all.sequences[i];
  return AttendAlone(step, weights, q, selected, gathered, o);
}

// Whether a sequence's entries come to its queries: where these are many. With few queries it is exchanges and
// launches that count. Bytes do not decide: a row's numbers would depend on how many rows are read with it.
bool EntriesTravel(const LayerStep& step, const ops::AttentionSequence& sequence) {
  return sequence.num_tokens > step.policy().few_queries;
}

// If shards divide the entries and keep them: every shard gets what is found in each one's part for its own
// heads.
Status AttendTogether(const LayerStep& step, const LayerWeights& weights, const TensorView& q,
                      const TensorView& selected, std::span<const ops::AttentionSequence> sequences,
                      const TensorView& o) {
  const Arena::Scope scope(step.context().arena);
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView parts,
                               step.NewTensor(DType::kF32, {step.context().shards.entries.count, q.shape[0],
                                                            q.shape[1], step.config().head_dim + 2}));
  DSV4_RETURN_IF_ERROR(SendQueries(step, weights.splits.heads, q, selected, sequences, parts));
  if (q.shape[1] == 0) return {};
  return step.Run("attn.o", step.ops().merge_attention, {.parts = parts, .sink = weights.attn_sink, .o = o});
}

// If shards divide the entries, neighbouring sequences that go the same way are attended to at once. Those
// that send queries go some tokens at a time, which bounds the arena: each token has 200 KB of queries and
// parts.
Status AttendDivided(const LayerStep& step, const LayerWeights& weights, const TensorView& q,
                     const TensorView& selected, std::span<const ops::AttentionSequence> sequences,
                     const TensorView& o) {
  const int64_t most_sent = step.policy().most_sent_queries;
  const std::span<const PassSequence> plan = step.plan().sequences;
  const auto of = [](const Range& rows, const TensorView& all) {
    return all.is_null() ? all : all.Rows(rows.begin, rows.end);
  };
  const auto send = [&](int64_t begin, int64_t end) -> Status {
    for (; begin < end; begin += most_sent) {
      const Range rows{begin, std::min(end, begin + most_sent)};
      std::vector<ops::AttentionSequence> some;
      DSV4_RETURN_IF_ERROR(AttendTogether(step, weights, of(rows, q), of(rows, selected),
                                          SequencesOf(rows, sequences, &some), of(rows, o)));
    }
    return {};
  };
  for (size_t first = 0, end = 0; first < sequences.size(); first = end) {
    const bool travel = EntriesTravel(step, sequences[first]);
    end = first + 1;
    while (end < sequences.size() && EntriesTravel(step, sequences[end]) == travel) ++end;
    const Range rows{sequences[first].token_begin,
                     sequences[end - 1].token_begin + sequences[end - 1].num_tokens};
    if (travel) {
      std::vector<ops::AttentionSequence> some;
      DSV4_RETURN_IF_ERROR(FetchEntries(step, weights, of(rows, q), of(rows, selected),
                                        plan.subspan(first, end - first), SequencesOf(rows, sequences, &some),
                                        of(rows, o)));
    }
    if (!travel || step.policy().sizes_only) {
      DSV4_RETURN_IF_ERROR(send(rows.begin, rows.end));
    }
  }
  return {};
}

// Whether the indexer of this layer has to choose. If no query of the pass sees more entries than it takes,
// all are taken. One rank asks its backend all the same, which sees that for itself. Several ranks would have
// to exchange their choices.
bool MustSelect(const LayerStep& step) {
  return !step.context().shards.divide_entries() ||
         step.plan().EntriesOf(step.layer_plan().ratio).beyond_top_k;
}

// Softmax over the visible set of every query, rotated back. `selected` is null where every visible entry
// takes part.
Result<TensorView> Attend(const LayerStep& step, const LayerWeights& weights, const TensorView& q,
                          const TensorView& selected, const Windows& windows) {
  const LayerPlan& plan = step.layer_plan();
  std::span<const ops::AttentionSequence> sequences =
      plan.block_rows > 0 ? step.Make(AttendingBlocks)
                          : step.Make(AttendingSequences, plan.sees_entries() ? 1 : 0);
  std::vector<ops::AttentionSequence> elsewhere;
  if (!windows.empty()) {
    elsewhere.assign(sequences.begin(), sequences.end());
    for (size_t i = 0; i < windows.size(); ++i) elsewhere[i].window = windows[i];
    sequences = elsewhere;
  }
  DSV4_ASSIGN_OR_RETURN(const TensorView o, step.NewTensor(step.dtype(), q.shape));
  const bool divided = step.context().shards.divide_entries() && step.layer_plan().sees_entries();
  DSV4_TRY(divided ? AttendDivided(step, weights, q, selected, sequences, o)
                   : AttendAlone(step, weights, q, selected, sequences, o));
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

Status AppendWindow(const LayerStep& step, const LayerWeights& weights, const TensorView& u) {
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView kv, step.Linear("attn.kv_a", u, weights.wkv, step.dtype()));
  DSV4_ASSIGN_OR_RETURN_STATUS(const Windows windows, MakeWindows(step));
  return StoreWindow(step, weights, kv, windows);
}

Result<TensorView> Attention(const LayerStep& step, const LayerWeights& weights, const TensorView& u,
                             TrunkState& state) {
  const ModelConfig& config = step.config();
  const int64_t n = u.shape[0];
  // A shard may have no output group, and then no heads; its part of the output projection it has all the
  // same.
  const int64_t num_heads = weights.wq_b.rows / config.head_dim;
  DSV4_ASSIGN_OR_RETURN(const TensorView q, step.NewTensor(step.dtype(), {n, num_heads, config.head_dim}));
  const LayerPlan& layer = step.layer_plan();
  const bool selects = layer.selects() && MustSelect(step);
  if (layer.selects()) state.selected = {};
  if (selects) {
    state.selected = state.selection_room;
    if (state.selected.is_null()) {
      DSV4_ASSIGN_OR_RETURN(state.selected, step.NewTensor(DType::kI32, {n, config.index_topk}));
    }
  }
  const TensorView selected = layer.reads_selection() ? state.selected : TensorView();
  DSV4_ASSIGN_OR_RETURN(const Windows windows, MakeWindows(step));
  {
    const Arena::Scope scope(step.context().arena);
    DSV4_ASSIGN_OR_RETURN(const Projections p, Project(step, weights, u));
    if (num_heads > 0) {
      const TensorView flat = q.Reshaped({n, weights.wq_b.rows});
      DSV4_TRY(step.Run("attn.q_b", step.ops().linear, {.x = p.q_lora, .weight = &weights.wq_b, .y = flat}));
      step.Observe("attn.q_b", flat);
    }
    TensorView indexer_queries;
    if (selects) {
      const Range rows = IndexerRows(step);
      DSV4_ASSIGN_OR_RETURN(indexer_queries, ProjectIndexerQueries(step, *weights.indexer,
                                                                   p.q_lora.Rows(rows.begin, rows.end)));
    }
    // Entries first: a pool that is a launch of its own comes in front of the rows that are one.
    if (layer.key_source == KeySource::kLatents) {
      if (layer.makes_entries()) DSV4_TRY(CompressLatents(step, weights, p.compressor));
    } else if (layer.makes_entries()) {
      DSV4_TRY(Compress(step, CompressorPart::kMain, *weights.compressor, p.compressor));
    }
    // Keys before the choice, so that a token sees an entry that it closes itself.
    if (layer.makes_keys() && layer.key_source == KeySource::kCompressor) {
      DSV4_TRY(Compress(step, CompressorPart::kIndexer, *weights.key_compressor, p.keys));
    }
    DSV4_TRY(StoreWindow(step, weights, p.kv, windows));
    if (num_heads > 0) DSV4_TRY(FinishQueries(step, q));
    if (selects) DSV4_TRY(SelectEntries(step, p.head_weights, indexer_queries, state.candidates, selected));
  }
  DSV4_ASSIGN_OR_RETURN(const TensorView o, Attend(step, weights, q, selected, windows));
  DSV4_ASSIGN_OR_RETURN(TensorView o_lora, LowRankOutput(step, weights, o));
  if (!step.context().shards.alone() && weights.splits.attn_out.total() == 0) {
    DSV4_ASSIGN_OR_RETURN(const TensorView y, step.NewTensor(step.dtype(), {step.context().own_rows().size(),
                                                                            config.hidden_size}));
    DSV4_ASSIGN_OR_RETURN(const TensorView part,
                          PartOfSum(step, "attn.out", o_lora, weights.wo_b, config.hidden_size));
    DSV4_TRY(SumShards(step, "attn.out", part, y));
    return y;
  }
  DSV4_ASSIGN_OR_RETURN(o_lora, GatherColumns(step, "attn.o_lora", o_lora, weights.splits.o_lora));
  DSV4_ASSIGN_OR_RETURN(const TensorView part, step.Linear("attn.out", o_lora, weights.wo_b, step.dtype()));
  DSV4_ASSIGN_OR_RETURN(const TensorView y, GatherColumns(step, "attn.out", part, weights.splits.attn_out));
  const Range rows = step.context().own_rows();
  return y.Rows(rows.begin, rows.end);
}

}  // namespace dsv4::model
