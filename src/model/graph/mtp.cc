// MTP draft block's graph: kept streams, window rows, and drafts one behind the other.
#include "model/graph/mtp.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "model/graph/attention.h"
#include "model/graph/draft_rows.h"
#include "model/graph/hyper_connection.h"
#include "model/graph/trunk.h"

namespace dsv4::model {
namespace {

// The block's plan, behind the trunk.
LayerPlan PlanOfBlock(const Graph& graph) {
  return BlockPlan(static_cast<int>(graph.config.num_hidden_layers), static_cast<int>(graph.layers.size()));
}

// A hyper-connection that leaves every stream as it is and adds one row to each.
struct Adding {
  TensorView post;  // [n, H] F32: ones.
  TensorView comb;  // [n, H, H] F32: identities.
};

Result<Adding> MakeAdding(const LayerStep& step, int64_t n) {
  const int64_t hc = step.config().hc_mult;
  std::vector<float> ones(static_cast<size_t>(n * hc), 1.0F);
  std::vector<float> identities(static_cast<size_t>(n * hc * hc));
  for (size_t i = 0; i < identities.size(); ++i) {
    const auto place = static_cast<int64_t>(i) % (hc * hc);
    identities[i] = place / hc == place % hc ? 1.0F : 0.0F;
  }
  DSV4_ASSIGN_OR_RETURN(const TensorView post, UploadToStep(step, DType::kF32, {n, hc}, ones.data()));
  DSV4_ASSIGN_OR_RETURN(const TensorView comb,
                        UploadToStep(step, DType::kF32, {n, hc, hc}, identities.data()));
  return Adding{post, comb};
}

// out = h_proj(hnorm(streams)) + e_proj(enorm(embedding)), the latter in every stream. `streams` [n, H, D]
// are overwritten. `adding`: of n tokens or more.
Status Join(const LayerStep& step, const Graph& graph, const TensorView& streams, const TensorView& token_ids,
            const Adding& adding, const TensorView& out) {
  const ModelConfig& config = step.config();
  const MtpWeights& mtp = *graph.weights.mtp;
  const int64_t n = streams.shape[0];
  const int64_t hc = config.hc_mult;
  const Arena::Scope scope(step.context().arena);
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView e, step.NewTensor(step.dtype(), {n, 1, config.hidden_size}));
  DSV4_RETURN_IF_ERROR(step.Run("embed", step.ops().embed,
                                {.token_ids = token_ids, .table = graph.weights.embed.data, .streams = e}));
  const TensorView embedded = e.Reshaped({n, config.hidden_size});
  const TensorView flat = streams.Reshaped({n * hc, config.hidden_size});
  // Beside each other: a backend may do both at once.
  DSV4_RETURN_IF_ERROR(step.RmsNorm("enorm", embedded, mtp.enorm));
  DSV4_RETURN_IF_ERROR(step.RmsNorm("hnorm", flat, mtp.hnorm));
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView y, step.Linear("e_proj", embedded, mtp.e_proj, step.dtype()));
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView h, step.Linear("h_proj", flat, mtp.h_proj, step.dtype()));
  return step.Run("join", step.ops().hc_post,
                  {.y = y,
                   .residual = h.Reshaped({n, hc, config.hidden_size}),
                   .post = adding.post.Rows(0, n),
                   .comb = adding.comb.Rows(0, n),
                   .out = out});
}

// The window rows of slots.
Status MakeSlots(const Graph& graph, Arena& arena, PassArrays& arrays, Slots& slots) {
  if (slots.plan.num_tokens == 0) return {};
  const ModelConfig& config = graph.config;
  const StepContext context = ContextOf(graph, arena, slots.plan, arrays);
  const LayerPlan block = PlanOfBlock(graph);
  const LayerStep step(context, block);
  const Arena::Scope scope(arena);
  DSV4_ASSIGN_OR_RETURN_STATUS(slots.plan.positions, UploadPositions(step, slots.plan));
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView tokens, slots.tokens.Gather(step, "slots"));
  slots.plan.token_ids = tokens.Reshaped({slots.plan.num_tokens});
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView flat, slots.streams.Gather(step, "slots"));
  const TensorView streams = flat.Reshaped({slots.plan.num_tokens, config.hc_mult, config.hidden_size});
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView joined, step.NewTensor(step.dtype(), streams.shape));
  DSV4_ASSIGN_OR_RETURN_STATUS(const Adding adding, MakeAdding(step, slots.plan.num_tokens));
  DSV4_RETURN_IF_ERROR(Join(step, graph, streams, slots.plan.token_ids, adding, joined));
  const LayerWeights& layer = graph.weights.mtp->layer;
  DSV4_ASSIGN_OR_RETURN_STATUS(const HcMix mix, HcPre(step, "attn", layer.hc_attn, joined));
  DSV4_RETURN_IF_ERROR(step.RmsNorm("attn.norm", mix.u, layer.attn_norm));
  for (const PassSequence& sequence : slots.plan.sequences)
    sequence.state->UseDraftRows(sequence.first_position, sequence.num_tokens);
  const Status status = AppendWindow(step, layer, mix.u);
  for (const PassSequence& sequence : slots.plan.sequences) sequence.state->UseDraftRows(0, 0);
  return status;
}

}  // namespace

namespace {

// The streams that are kept and are here, [rows, H * D]; all are, of a pass that is not long, and then
// `streams` themselves.
Result<TensorView> KeptStreams(const StepContext& context, std::span<const Range> here,
                               const TensorView& streams) {
  const TensorView own = streams.Reshaped({streams.shape[0], context.config.hc_dim()});
  const int64_t num_here = NumRows(here);
  if (num_here == own.shape[0]) return own;
  const LayerStep step(context);
  DSV4_ASSIGN_OR_RETURN(const TensorView picked, step.NewTensor(own.dtype, {num_here, own.shape[1]}));
  std::vector<RowRun> runs;
  int64_t end = 0;
  for (const Range& rows : here) {
    runs.push_back({rows.begin, rows.size(), picked.Rows(end, end + rows.size()).data});
    end += rows.size();
  }
  if (!runs.empty()) DSV4_TRY(step.StoreRows("streams", own, context.arrays.Fixed(std::move(runs))));
  return picked;
}

}  // namespace

Status KeepForDrafts(const StepContext& context, const Graph& graph, const TrunkState& trunk) {
  const PassPlan& plan = context.plan;
  const ModelConfig& config = context.config;
  if (plan.num_tokens == 0) return {};
  const KeptRows kept(plan);
  const RankPlace& place = graph.weights.place;
  const std::vector<Range> here = KeptHere(context, kept);
  TensorView mine;
  if (place.last_stage()) {
    DSV4_ASSIGN_OR_RETURN_STATUS(mine, KeptStreams(context, here, trunk.streams));
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(mine, BringToFirstStage(context, graph, place.placement.num_stages - 1, mine,
                                                       {NumRows(here), config.hc_dim()}));
  if (!place.first_stage()) return {};
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView flat, GatherKept(context, kept, mine));
  // Ring rows are read before they are overwritten.
  Slots slots(config.hc_dim(), context.activation_dtype());
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const PassSequence& sequence = plan.sequences[i];
    const PassSequence& of_kept = kept.plan.sequences[i];
    kv::SequenceState& state = *sequence.state;
    const int64_t first = sequence.first_position;
    const auto [begin, end] = DraftSlotsToMake(sequence, config.sliding_window);
    if (begin >= end) continue;
    slots.Add(state, begin, end);
    const auto add = [](Stretches& to, const TensorView& rows, const PassSequence& in, int64_t from,
                        int64_t until) {
      if (from >= until) return;
      const int64_t row = in.token_begin + from - in.first_position;
      to.Add(rows.Rows(row, row + until - from).data, until - from);
    };
    slots.streams.Add(DraftRing(state, kv::RingKind::kDraftStreams), begin, std::min(end, first));
    add(slots.streams, flat, of_kept, std::max(begin, first), end);
    slots.tokens.Add(DraftRing(state, kv::RingKind::kDraftTokens), begin + 1, std::min(end + 1, first));
    add(slots.tokens, plan.token_ids, sequence, std::max(begin + 1, first), end + 1);
  }
  DSV4_RETURN_IF_ERROR(MakeSlots(graph, context.arena, context.arrays, slots));

  const LayerPlan block = PlanOfBlock(graph);
  const StepContext of_kept = ContextOf(graph, context.arena, kept.plan, context.arrays);
  const LayerStep keep(of_kept, block);
  DSV4_RETURN_IF_ERROR(keep.StoreRows("streams", flat, keep.Make(KeptRuns)));
  const LayerStep step(context, block);
  return step.StoreRows("tokens", plan.token_ids.Reshaped({plan.num_tokens, 1}), step.Make(KeptRuns, 1));
}

namespace {

// Rows of the plan's sequences, one token of each, for so many passes in which each goes on by one: [passes,
// sequences] I32.
Result<TensorView> UploadDepths(const LayerStep& step, const PassPlan& plan, int64_t num_depths) {
  std::vector<int32_t> positions;
  for (int64_t depth = 0; depth < num_depths; ++depth) {
    for (const PassSequence& sequence : plan.sequences)
      positions.push_back(static_cast<int32_t>(sequence.first_position + depth));
  }
  return UploadToStep(step, DType::kI32, {num_depths, plan.num_tokens}, positions.data());
}

// Behind the block: what the head reads, [n, D].
Result<TensorView> MixBlock(const LayerStep& step, const MtpWeights& mtp, const TensorView& streams) {
  if (streams.shape[0] == 0) return step.NewTensor(step.dtype(), {0, step.config().hidden_size});
  DSV4_ASSIGN_OR_RETURN(const TensorView y,
                        step.config().trunk->collapse(step, mtp.hc_head, {.streams = streams}));
  DSV4_TRY(step.RmsNorm("head.norm", y, mtp.norm));
  return y;
}

}  // namespace

Status RunDraft(const Graph& graph, Arena& arena, PassArrays& arrays, std::span<const DraftRow> rows,
                const TensorView& allowed, const TensorView& tokens, const TensorView& faults) {
  const ModelConfig& config = graph.config;
  const MtpWeights& mtp = *graph.weights.mtp;
  const DType dtype = graph.numerics == Numerics::kRelease ? DType::kBF16 : DType::kF32;
  Slots slots(config.hc_dim(), dtype);
  Slots last(config.hc_dim(), dtype);  // Slots whose tokens the callers know.
  std::vector<int32_t> known;
  for (const DraftRow& row : rows) {
    if (!row.state->home().here) continue;
    const int64_t end = row.state->length() - 1;
    if (const int64_t begin = row.FirstSlot(); begin < end) {
      slots.Add(*row.state, begin, end);
      slots.streams.Add(DraftRing(*row.state, kv::RingKind::kDraftStreams), begin, end);
      slots.tokens.Add(DraftRing(*row.state, kv::RingKind::kDraftTokens), begin + 1, end + 1);
    }
    if (row.choices.empty()) continue;
    last.Add(*row.state, end, end + 1);
    last.streams.Add(DraftRing(*row.state, kv::RingKind::kDraftStreams), end, end + 1);
    known.push_back(row.token);
  }
  DSV4_RETURN_IF_ERROR(MakeSlots(graph, arena, arrays, slots));
  const int64_t all_drafted = NumRowsAt(rows, 0);
  if (all_drafted == 0) return {};

  // One slot of each sequence after the other; those that want fewer leave at the end.
  PassPlan& plan = last.plan;
  const DraftShards shards(graph, rows);
  StepContext context = ContextOf(graph, arena, plan, arrays);
  const LayerPlan block = PlanOfBlock(graph);
  const LayerStep step(context, block);
  const auto count = static_cast<int64_t>(known.size());
  TensorView ids;
  TensorView streams;
  if (count > 0) {
    DSV4_ASSIGN_OR_RETURN_STATUS(ids, UploadToStep(step, DType::kI32, {count}, known.data()));
    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView flat, last.streams.Gather(step, "draft"));
    streams = flat.Reshaped({count, config.hc_mult, config.hidden_size});
  } else {
    DSV4_ASSIGN_OR_RETURN_STATUS(ids, step.NewTensor(DType::kI32, {0}));
    DSV4_ASSIGN_OR_RETURN_STATUS(streams,
                                 step.NewTensor(step.dtype(), {0, config.hc_mult, config.hidden_size}));
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(TensorView joined, step.NewTensor(step.dtype(), streams.shape));
  const int64_t num_depths = std::ssize(rows[0].choices);
  Adding adding;
  TensorView positions;
  if (count > 0) {
    DSV4_ASSIGN_OR_RETURN_STATUS(adding, MakeAdding(step, count));
    DSV4_ASSIGN_OR_RETURN_STATUS(positions, UploadDepths(step, plan, num_depths));
  }
  for (int64_t depth = 0; depth < num_depths; ++depth) {
    const int64_t all = NumRowsAt(rows, depth);
    const int64_t n = shards.NumHere(all);
    plan.sequences.resize(static_cast<size_t>(n));
    plan.num_tokens = n;
    shards.Enter(context, all, 1);
    const Arena::Scope scope(arena);
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      PassSequence& sequence = plan.sequences[i];
      sequence.first_position = sequence.state->length() - 1 + depth;
      sequence.state->UseDraftRows(sequence.first_position, 1);
    }
    if (n > 0) {
      plan.positions = AtDepth(positions, depth, n);
      plan.token_ids = ids.Rows(0, n);
      DSV4_RETURN_IF_ERROR(Join(step, graph, streams.Rows(0, n), plan.token_ids, adding, joined.Rows(0, n)));
    }
    TrunkState state{.streams = joined.Rows(0, n)};
    DSV4_RETURN_IF_ERROR(config.trunk->run_layer(step, mtp.layer, state, {}));

    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView mixed, MixBlock(step, mtp, joined.Rows(0, n)));
    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView y, shards.Gather(step, mixed, all, 1));
    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView part,
                                 step.Linear("logits", y, DraftHeadOf(graph.weights), DType::kF32));
    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView logits, shards.GatherLogits(step, part));
    if (shards.chooses())
      DSV4_RETURN_IF_ERROR(SampleDrafts(step, rows, depth, logits, allowed, tokens, faults));
    if (depth + 1 < num_depths) {
      DSV4_ASSIGN_OR_RETURN_STATUS(ids, shards.Share(step, AtDepth(tokens, depth, all), ids.Rows(0, n)));
    }
    std::swap(streams, joined);
  }
  return {};
}

}  // namespace dsv4::model
