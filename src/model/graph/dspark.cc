// DSpark drafter's graph: taps of the trunk, window rows, stages of a block, Markov head and confidence.
#include "model/graph/dspark.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "model/config/dspark_config.h"
#include "model/graph/attention.h"
#include "model/graph/draft_rows.h"
#include "model/graph/hyper_connection.h"
#include "model/graph/trunk.h"

namespace dsv4::model {
namespace {

// The plan of a stage behind the trunk.
LayerPlan StagePlan(const Graph& graph, size_t stage, int64_t block_rows) {
  LayerPlan plan = DsparkStagePlan(graph.weights.dspark->config,
                                   static_cast<int>(graph.config.num_hidden_layers) + static_cast<int>(stage),
                                   static_cast<int>(graph.layers.size() + stage));
  plan.block_rows = block_rows;
  return plan;
}

// The window rows of slots, in all stages.
Status MakeSlots(const Graph& graph, Arena& arena, PassArrays& arrays, Slots& slots) {
  if (slots.plan.num_tokens == 0) return {};
  const DsparkWeights& dspark = *graph.weights.dspark;
  const StepContext context = ContextOf(graph, arena, slots.plan, arrays);
  const LayerStep step(context, StagePlan(graph, 0, 0));
  const Arena::Scope scope(arena);
  DSV4_ASSIGN_OR_RETURN_STATUS(slots.plan.positions, UploadPositions(step, slots.plan));
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView taps, slots.streams.Gather(step, "dspark.taps"));
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView main_x,
                               step.Linear("dspark.main_proj", taps, dspark.main_proj, step.dtype()));
  DSV4_RETURN_IF_ERROR(step.RmsNorm("dspark.main_norm", main_x, dspark.main_norm));
  for (const PassSequence& sequence : slots.plan.sequences)
    sequence.state->UseDraftRows(sequence.first_position, sequence.num_tokens);
  Status status;
  for (size_t i = 0; i < dspark.stages.size() && status.ok(); ++i) {
    const Arena::Scope of_stage(arena);
    status = AppendWindow(LayerStep(context, StagePlan(graph, i, 0)), dspark.stages[i], main_x);
  }
  for (const PassSequence& sequence : slots.plan.sequences) sequence.state->UseDraftRows(0, 0);
  return status;
}

}  // namespace

Result<DsparkTaps> DsparkTaps::Begin(const StepContext& context, const Graph& graph) {
  DsparkTaps taps(context, graph);
  const RankPlace& place = graph.weights.place;
  taps.here_ = KeptHere(context, taps.kept_);
  taps.num_here_ = NumRows(taps.here_);
  taps.columns_ = place.first_stage() ? taps.ColumnsOf({0, graph.config.num_hidden_layers})
                                      : taps.ColumnsOf(place.layers);
  const int64_t num_rows = taps.num_here_ * std::ssize(taps.columns_);
  const DType dtype = context.activation_dtype();
  DSV4_ASSIGN_OR_RETURN(taps.taps_, context.arena.Allocate(dtype, {num_rows, graph.config.hidden_size}));
  // A mean is two small launches, which take as long for one row as for so many.
  constexpr int64_t kFewRows = 64;
  if (place.placement.num_stages == 1 && num_rows > 0 && num_rows <= kFewRows) {
    DSV4_ASSIGN_OR_RETURN(taps.streams_, context.arena.Allocate(dtype, {num_rows, graph.config.hc_mult,
                                                                        graph.config.hidden_size}));
  }
  return taps;
}

bool DsparkTaps::Taps(int64_t layer) const {
  const std::vector<int64_t>& layers = graph_->weights.dspark->config.target_layer_ids;
  return num_here_ > 0 && std::ranges::find(layers, layer) != layers.end();
}

std::vector<int64_t> DsparkTaps::ColumnsOf(const Range& layers) const {
  const std::vector<int64_t>& tapped = graph_->weights.dspark->config.target_layer_ids;
  std::vector<int64_t> columns;
  for (size_t i = 0; i < tapped.size(); ++i) {
    if (tapped[i] >= layers.begin && tapped[i] < layers.end) columns.push_back(static_cast<int64_t>(i));
  }
  return columns;
}

void DsparkTaps::AddRuns(int64_t first, int64_t step, std::span<const Range> from, int64_t column,
                         const TensorView& to, std::vector<RowRun>* runs) const {
  const int64_t width = std::ssize(columns_);
  int64_t kept = 0;
  for (const Range& range : from) {
    for (int64_t row = range.begin; row < range.end; ++row) {
      const int64_t at = kept++ * width + column;
      runs->push_back({first + row * step, 1, to.Rows(at, at + 1).data});
    }
  }
}

Status DsparkTaps::Mean(const LayerStep& step, const TensorView& streams, const TensorView& rows) const {
  const ModelConfig& config = graph_->config;
  const HyperConnectionWeights& mean = graph_->weights.dspark->tap;
  return step.Run("dspark.tap", step.ops().hc_head,
                  {.streams = streams,
                   .fn = mean.fn,
                   .scale = mean.scale,
                   .base = mean.base,
                   .y = rows,
                   .norm_eps = static_cast<float>(config.rms_norm_eps),
                   .hc_eps = 1.0F / static_cast<float>(config.hc_mult)});
}

Status DsparkTaps::Tap(int64_t layer, const TrunkState& state) {
  if (!Taps(layer)) return {};
  const TensorView& streams = state.streams;
  const ModelConfig& config = graph_->config;
  const LayerStep step(*context_);
  const Arena::Scope scope(context_->arena);
  TensorView rows;
  TensorView to = taps_;
  if (streams_.is_null()) {
    DSV4_ASSIGN_OR_RETURN_STATUS(rows, step.NewTensor(step.dtype(), {streams.shape[0], config.hidden_size}));
    DSV4_RETURN_IF_ERROR(Mean(step, streams, rows));
  } else {
    rows = streams.Reshaped({streams.shape[0], config.hc_dim()});
    to = streams_.Reshaped({streams_.shape[0], config.hc_dim()});
  }
  const std::vector<int64_t>& layers = graph_->weights.dspark->config.target_layer_ids;
  std::vector<RowRun> runs;
  for (int64_t i = 0; i < std::ssize(columns_); ++i) {
    if (layers[static_cast<size_t>(columns_[static_cast<size_t>(i)])] == layer)
      AddRuns(0, 1, here_, i, to, &runs);
  }
  return step.StoreRows("dspark.tap", rows, context_->arrays.Fixed(std::move(runs)));
}

Status DsparkTaps::BringToFirstStage() {
  const RankPlace& place = graph_->weights.place;
  const Range all = {0, num_here_};
  for (int stage = 1; stage < place.placement.num_stages; ++stage) {
    const std::vector<int64_t> theirs = ColumnsOf(place.stage_layers[static_cast<size_t>(stage)]);
    const auto width = std::ssize(theirs);
    if (width == 0) continue;
    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView rows,
                                 model::BringToFirstStage(*context_, *graph_, stage, taps_,
                                                          {num_here_ * width, graph_->config.hidden_size}));
    if (!place.first_stage() || num_here_ == 0) continue;
    std::vector<RowRun> runs;
    for (int64_t i = 0; i < width; ++i)
      AddRuns(i, width, std::span(&all, 1), theirs[static_cast<size_t>(i)], taps_, &runs);
    DSV4_RETURN_IF_ERROR(
        LayerStep(*context_).StoreRows("dspark.tap", rows, context_->arrays.Fixed(std::move(runs))));
  }
  return {};
}

Status DsparkTaps::Keep() {
  const PassPlan& plan = kept_.plan;
  if (plan.num_tokens == 0) return {};
  const ModelConfig& config = graph_->config;
  if (!streams_.is_null()) DSV4_RETURN_IF_ERROR(Mean(LayerStep(*context_), streams_, taps_));
  DSV4_RETURN_IF_ERROR(BringToFirstStage());
  if (!graph_->weights.place.first_stage()) return {};
  const TensorView mine = taps_.Reshaped({num_here_, graph_->weights.dspark->main_proj.cols});
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView flat, GatherKept(*context_, kept_, mine));
  // Ring rows are read before they are overwritten.
  Slots slots(flat.shape[1], flat.dtype);
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const PassSequence& kept = plan.sequences[i];
    const PassSequence& whole = context_->plan.sequences[i];
    const auto [begin, end] = DraftSlotsToMake(whole, config.sliding_window);
    if (begin >= end) continue;
    slots.Add(*kept.state, begin, end);
    slots.streams.Add(DraftRing(*kept.state, kv::RingKind::kDraftStreams), begin,
                      std::min(end, whole.first_position));
    if (const int64_t from = std::max(begin, whole.first_position); from < end) {
      const int64_t row = kept.token_begin + from - kept.first_position;
      slots.streams.Add(flat.Rows(row, row + end - from).data, end - from);
    }
  }
  DSV4_RETURN_IF_ERROR(MakeSlots(*graph_, context_->arena, context_->arrays, slots));
  const StepContext context = ContextOf(*graph_, context_->arena, plan, context_->arrays);
  const LayerStep step(context, StagePlan(*graph_, 0, 0));
  return step.StoreRows("dspark.taps", flat, step.Make(KeptRuns));
}

namespace {

// The head's input of the first `most` rows of every block, those of one position together: [most * blocks,
// D].
Result<TensorView> ByDepth(const LayerStep& step, const TensorView& y, int64_t num_blocks, int64_t block,
                           int64_t most) {
  if (num_blocks == 1) return y.Rows(0, most);
  DSV4_ASSIGN_OR_RETURN(const TensorView ordered, step.NewTensor(y.dtype, {most * num_blocks, y.shape[1]}));
  std::vector<RowRun> runs;
  for (int64_t depth = 0; depth < most; ++depth) {
    for (int64_t i = 0; i < num_blocks; ++i) {
      const int64_t row = depth * num_blocks + i;
      runs.push_back({i * block + depth, 1, ordered.Rows(row, row + 1).data});
    }
  }
  DSV4_TRY(step.StoreRows("dspark.head", y, runs));
  return ordered;
}

// Results of the confidence head for the rows and the tokens in front of them, [most, blocks] each, which
// come to the host as one.
struct Confidence {
  TensorView both;
  TensorView hidden;
  TensorView markov;
};

Status BringConfidence(const LayerStep& step, const Confidence& confidence, std::span<const DraftRow> rows) {
  const int64_t num_blocks = confidence.hidden.shape[1];
  std::vector<float> both(static_cast<size_t>(confidence.both.num_elements()));
  const auto hidden = std::span(both).first(both.size() / 2);
  const auto markov = std::span(both).last(both.size() / 2);
  ops::OpContext& context = *step.context().backend.context;
  DSV4_RETURN_IF_ERROR(context.memory().CopyToHost(both.data(), confidence.both.data,
                                                   both.size() * sizeof(float), context.stream()));
  for (int64_t i = 0; i < num_blocks; ++i) {
    const DraftRow& row = rows[static_cast<size_t>(i)];
    for (size_t depth = 0; row.confidence != nullptr && depth < row.choices.size(); ++depth) {
      const size_t at = depth * static_cast<size_t>(num_blocks) + static_cast<size_t>(i);
      row.confidence[depth] =
          static_cast<float>(1 / (1 + std::exp(-static_cast<double>(hidden[at]) - markov[at])));
    }
  }
  return {};
}

// The state of all blocks behind the stages, of blocks * size rows.
Result<TrunkState> RunStages(const Graph& graph, const LayerStep& outside, PassPlan& plan) {
  const DsparkWeights& dspark = *graph.weights.dspark;
  const ModelConfig& config = graph.config;
  const int64_t size = dspark.config.block_size;
  TrunkState state;
  DSV4_ASSIGN_OR_RETURN(state.streams, outside.NewTensor(outside.dtype(), {plan.num_tokens, config.hc_mult,
                                                                           config.hidden_size}));
  if (plan.num_tokens > 0) {
    DSV4_ASSIGN_OR_RETURN(plan.positions, UploadPositions(outside, plan));
    DSV4_ASSIGN_OR_RETURN(plan.token_ids,
                          UploadToStep(outside, DType::kI32, {plan.num_tokens}, plan.tokens.data()));
    DSV4_TRY(outside.Run(
        "embed", outside.ops().embed,
        {.token_ids = plan.token_ids, .table = graph.weights.embed.data, .streams = state.streams}));
  }
  if (config.trunk->begin != nullptr) DSV4_TRY(config.trunk->begin(outside, state));
  for (size_t i = 0; i < dspark.stages.size(); ++i)
    DSV4_TRY(config.trunk->run_layer(LayerStep(outside.context(), StagePlan(graph, i, size)),
                                     dspark.stages[i], state, {}));
  return state;
}

}  // namespace

Status RunDsparkDraft(const Graph& graph, Arena& arena, PassArrays& arrays, std::span<const DraftRow> rows,
                      const TensorView& allowed, const TensorView& tokens, const TensorView& faults) {
  const DsparkWeights& dspark = *graph.weights.dspark;
  const int64_t size = dspark.config.block_size;
  const DType dtype = graph.numerics == Numerics::kRelease ? DType::kBF16 : DType::kF32;
  Slots slots(dspark.main_proj.cols, dtype);
  for (const DraftRow& row : rows) {
    if (!row.state->home().here) continue;
    const int64_t begin = row.FirstSlot();
    slots.Add(*row.state, begin, row.state->length());
    slots.streams.Add(DraftRing(*row.state, kv::RingKind::kDraftStreams), begin, row.state->length());
  }
  DSV4_RETURN_IF_ERROR(MakeSlots(graph, arena, arrays, slots));

  PassPlan plan;
  std::vector<int32_t> anchors;
  for (const DraftRow& row : rows) {
    if (row.choices.empty()) break;
    anchors.push_back(row.token);
    if (!row.state->home().here) continue;
    plan.sequences.push_back({.state = row.state,
                              .token_begin = plan.num_tokens,
                              .num_tokens = size,
                              .first_position = row.state->length()});
    plan.num_tokens += size;
    row.state->UseDraftRows(row.state->length(), size);
    plan.tokens.push_back(row.token);
    plan.tokens.insert(plan.tokens.end(), static_cast<size_t>(size - 1),
                       static_cast<int32_t>(dspark.config.noise_token_id));
  }
  if (anchors.empty()) return {};
  const auto num_blocks = static_cast<int64_t>(anchors.size());
  const auto most = static_cast<int64_t>(rows[0].choices.size());

  const DraftShards shards(graph, rows);
  StepContext context = ContextOf(graph, arena, plan, arrays);
  shards.Enter(context, num_blocks, size);
  const LayerPlan last = StagePlan(graph, dspark.stages.size() - 1, size);
  const LayerStep step(context, last);
  DSV4_ASSIGN_OR_RETURN_STATUS(const TrunkState state, RunStages(graph, step, plan));
  TensorView mixed;
  if (plan.num_tokens > 0) {
    DSV4_ASSIGN_OR_RETURN_STATUS(mixed, graph.config.trunk->collapse(step, dspark.hc_head, state));
  } else {
    DSV4_ASSIGN_OR_RETURN_STATUS(mixed, step.NewTensor(step.dtype(), {0, graph.config.hidden_size}));
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(mixed, shards.Gather(step, mixed, num_blocks, size));
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView y, ByDepth(step, mixed, num_blocks, size, most));

  const bool confident =
      std::ranges::any_of(rows, [](const DraftRow& row) { return row.confidence != nullptr; });
  Confidence confidence;
  if (confident) {
    DSV4_ASSIGN_OR_RETURN_STATUS(confidence.both, step.NewTensor(DType::kF32, {2 * most, num_blocks}));
    confidence.hidden = confidence.both.Rows(0, most);
    confidence.markov = confidence.both.Rows(most, 2 * most);
    DSV4_RETURN_IF_ERROR(step.Run("dspark.confidence", step.ops().linear,
                                  {.x = y,
                                   .weight = &dspark.confidence_hidden,
                                   .y = confidence.hidden.Reshaped({most * num_blocks, 1})}));
    DSV4_RETURN_IF_ERROR(step.Clear(confidence.markov));
  }
  DSV4_RETURN_IF_ERROR(step.RmsNorm("head.norm", y, dspark.norm));
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView part,
                               step.Linear("logits", y, DraftHeadOf(graph.weights), DType::kF32));
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView base, shards.GatherLogits(step, part));
  // The rest of a block is a few small steps one after the other, between which others would wait.
  if (!shards.chooses()) return {};

  DSV4_ASSIGN_OR_RETURN_STATUS(TensorView previous,
                               UploadToStep(step, DType::kI32, {num_blocks}, anchors.data()));
  const int64_t rank = dspark.config.markov_rank;
  for (int64_t depth = 0; depth < most; ++depth) {
    const Arena::Scope scope(arena);
    const int64_t n = NumRowsAt(rows, depth);
    const TensorView logits = base.Rows(depth * num_blocks, depth * num_blocks + n);
    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView embedded, step.NewTensor(step.dtype(), {n, 1, rank}));
    DSV4_RETURN_IF_ERROR(
        step.Run("dspark.markov", step.ops().embed,
                 {.token_ids = previous.Rows(0, n), .table = dspark.markov_w1.data, .streams = embedded}));
    const TensorView in_front = embedded.Reshaped({n, rank});
    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView term,
                                 step.Linear("dspark.markov", in_front, dspark.markov_w2, DType::kF32));
    // The sum of two f32 tensors, whatever the op was made for.
    DSV4_RETURN_IF_ERROR(
        step.Run("dspark.markov", step.ops().moe_combine, {.routed = logits, .shared = term, .y = logits}));
    if (confident) {
      DSV4_RETURN_IF_ERROR(step.Run("dspark.confidence", step.ops().linear,
                                    {.x = in_front,
                                     .weight = &dspark.confidence_markov,
                                     .y = AtDepth(confidence.markov, depth, n).Reshaped({n, 1})}));
    }
    DSV4_RETURN_IF_ERROR(SampleDrafts(step, rows, depth, logits, allowed, tokens, faults));
    previous = AtDepth(tokens, depth, n);
  }
  return confident ? BringConfidence(step, confidence, rows) : Status();
}

}  // namespace dsv4::model
