// The tail of a pass, and the change to it.
#include "model/graph/pass_tail.h"

#include <algorithm>
#include <utility>

#include "model/graph/draft_rows.h"

namespace dsv4::model {
namespace {

// Number of the layer behind the last one that makes entries; none where that is the last.
std::optional<int64_t> FirstLayerOfTail(const Graph& graph) {
  const RankPlace& place = graph.weights.place;
  if (!graph.config.trunk->cuts_tail) return std::nullopt;
  const int64_t end = place.stage_layers.back().end;
  int64_t first = end;
  while (first > 0 && !graph.config.layers[static_cast<size_t>(first - 1)].makes_entries()) --first;
  if (first == 0 || first == end) return std::nullopt;
  if (graph.weights.dspark.has_value()) {
    const DsparkConfig& dspark = graph.weights.dspark->config;
    const int64_t first_tap = std::ranges::min(dspark.target_layer_ids);
    // Taps of several stages are of one pass's rows.
    if (place.placement.num_stages > 1 || !dspark.taps_inputs || first_tap < first) return std::nullopt;
  }
  return first;
}

// Rows in front of one that counts behind the last layer on which it depends.
int64_t Reach(const Graph& graph, int64_t first_layer) {
  return (graph.config.sliding_window - 1) * (graph.weights.place.stage_layers.back().end - first_layer);
}

template <typename T>
void KeepRows(std::span<const Range> rows, int64_t width, std::vector<T>& values) {
  std::vector<T> kept;
  for (const Range& range : rows)
    kept.insert(kept.end(), values.begin() + range.begin * width, values.begin() + range.end * width);
  values = std::move(kept);
}

// Rows of a tensor, in memory of their own.
Result<TensorView> TakeRows(const LayerStep& step, const TensorView& all, std::span<const Range> rows,
                            int64_t num_rows) {
  const int64_t width = all.num_elements() / all.shape[0];
  DSV4_ASSIGN_OR_RETURN(const TensorView taken, step.NewTensor(all.dtype, {num_rows, width}));
  std::vector<RowRun> runs;
  int64_t end = 0;
  for (const Range& range : rows) {
    if (range.empty()) continue;
    runs.push_back({range.begin, range.size(), taken.Rows(end, end + range.size()).data});
    end += range.size();
  }
  DSV4_TRY(step.StoreRows("tail", all.Reshaped({all.shape[0], width}),
                          step.context().arrays.Fixed(std::move(runs))));
  return taken;
}

// Part of `ranges` that is in `part`, as rows of that.
std::vector<Range> RowsIn(std::span<const Range> ranges, const Range& part) {
  std::vector<Range> rows;
  for (const Range& range : ranges) {
    const Range both = {std::max(range.begin, part.begin), std::min(range.end, part.end)};
    if (both.begin < both.end) rows.push_back({both.begin - part.begin, both.end - part.begin});
  }
  return rows;
}

// The tail's rows of streams, or of what is divided as they are. Shards that each keep some of a pass's have
// others of the tail's.
Result<TensorView> TakeStreams(const LayerStep& step, const StepContext& behind, const TensorView& all,
                               std::span<const Range> rows) {
  const StepContext& context = step.context();
  if (!context.divide_streams()) return TakeRows(step, all, rows, behind.plan.num_tokens);
  std::vector<int64_t> counts;
  for (int shard = 0; shard < context.shards.group->size(); ++shard)
    counts.push_back(NumRows(RowsIn(rows, PartOf(context.stream_rows, shard))));
  DSV4_ASSIGN_OR_RETURN(const TensorView mine,
                        TakeRows(step, all, RowsIn(rows, context.own_rows()),
                                 counts[static_cast<size_t>(context.shards.group->rank())]));
  DSV4_ASSIGN_OR_RETURN(const TensorView taken, GatherRows(step, mine, counts));
  const Range own = behind.own_rows();
  return taken.Rows(own.begin, own.end);
}

}  // namespace

int64_t MostKeptRows(const kv::CacheLayout& layout) { return layout.DraftWindowRows() + kv::kDraftBlock; }

int64_t ExactFrom(const kv::SequenceState& state, int64_t count, int64_t num_wanted, int64_t num_following) {
  const int64_t end = state.length() + count;
  int64_t exact_from = end + num_following - MostKeptRows(state.layout());
  if (num_wanted > 0) exact_from = std::min(exact_from, end - num_wanted);
  // Rows that an earlier step has left out cannot be made up for.
  return std::max(exact_from, state.whole() ? 0 : state.whole_from());
}

int64_t TailRows(const Graph& graph, const kv::CacheLayout& layout) {
  const std::optional<int64_t> first_layer = FirstLayerOfTail(graph);
  return first_layer.has_value() ? Reach(graph, *first_layer) + MostKeptRows(layout) : 0;
}

std::optional<PassTail> CutTail(const Graph& graph, std::span<const PassChunk> chunks, const PassPlan& plan) {
  const std::optional<int64_t> first_layer = FirstLayerOfTail(graph);
  // A token's id comes from the host there.
  if (!first_layer.has_value() ||
      std::ranges::any_of(chunks, [](const PassChunk& c) { return c.follows >= 0; }))
    return std::nullopt;
  const RankPlace& place = graph.weights.place;
  const int64_t in_front = *first_layer - place.layers.begin;
  PassTail tail{.first_layer = static_cast<size_t>(std::min(in_front, place.layers.size())),
                .rows = {},
                .chunk_rows = {},
                .whole_from = {},
                .shard_tokens = {},
                .num_tokens = 0,
                .plan = plan};
  if (place.placement.divide_sequences) tail.shard_tokens.resize(static_cast<size_t>(place.num_shards()));
  const int64_t reach = Reach(graph, *first_layer);
  tail.plan.sequences.clear();
  tail.plan.num_tokens = 0;
  int64_t num_tokens = 0;
  auto here = plan.sequences.begin();
  for (const PassChunk& chunk : chunks) {
    const int64_t begin = chunk.state->length();
    const int64_t end = begin + std::ssize(chunk.tokens);
    const int64_t first = std::clamp(chunk.exact_from - reach, begin, end);
    const kv::StateHome& home = chunk.state->home();
    tail.chunk_rows.push_back(end - first);
    tail.whole_from.push_back(first > begin ? chunk.exact_from : 0);
    tail.num_tokens += end - first;
    num_tokens += end - begin;
    if (!tail.shard_tokens.empty()) tail.shard_tokens[static_cast<size_t>(home.place)] += end - first;
    if (!home.here) continue;
    PassSequence sequence = *here++;
    tail.rows.push_back({sequence.token_begin + first - begin, sequence.token_begin + sequence.num_tokens});
    if (first == end) continue;
    sequence.token_begin = tail.plan.num_tokens;
    sequence.first_position = first;
    sequence.num_tokens = end - first;
    tail.plan.sequences.push_back(sequence);
    tail.plan.num_tokens += sequence.num_tokens;
  }
  if (tail.num_tokens == num_tokens) return std::nullopt;
  KeepRows(tail.rows, 1, tail.plan.tokens);
  for (std::vector<int64_t>& rows : tail.plan.engram_rows) {
    if (!rows.empty()) KeepRows(tail.rows, std::ssize(rows) / plan.num_tokens, rows);
  }
  return tail;
}

Status EnterTail(const LayerStep& step, const StepContext& behind, PassTail& tail, TrunkState& state) {
  PassPlan& plan = tail.plan;
  if (plan.num_tokens == 0) return {};
  const auto take = [&](TensorView& tensor) -> Status {
    if (!tensor.is_null()) {
      DSV4_ASSIGN_OR_RETURN_STATUS(tensor, TakeRows(step, tensor, tail.rows, plan.num_tokens));
    }
    return {};
  };
  const bool in_room = !state.selected.is_null() && state.selected.data == state.selection_room.data;
  const Shape streams = state.streams.shape;
  DSV4_ASSIGN_OR_RETURN_STATUS(state.streams, TakeStreams(step, behind, state.streams, tail.rows));
  state.streams = state.streams.Reshaped({state.streams.shape[0], streams[1], streams[2]});
  if (!state.pre.is_null()) {
    DSV4_ASSIGN_OR_RETURN_STATUS(state.pre, TakeStreams(step, behind, state.pre, tail.rows));
  }
  DSV4_RETURN_IF_ERROR(take(state.candidates));
  DSV4_RETURN_IF_ERROR(take(state.selection_room));
  if (in_room) {
    state.selected = state.selection_room;
  } else {
    DSV4_RETURN_IF_ERROR(take(state.selected));
  }
  plan.windows_fit = true;
  for (const PassSequence& sequence : plan.sequences) {
    sequence.state->UseAppendRows(sequence.first_position);
    plan.windows_fit = plan.windows_fit && sequence.state->WindowFits();
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(plan.positions, UploadPositions(step, plan));
  DSV4_ASSIGN_OR_RETURN_STATUS(plan.token_ids,
                               UploadToStep(step, DType::kI32, {plan.num_tokens}, plan.tokens.data()));
  return {};
}

}  // namespace dsv4::model
