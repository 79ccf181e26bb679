// The tail of a pass, and the change to it.
#include "model/graph/pass_tail.h"

#include <algorithm>
#include <utility>

#include "model/graph/draft_rows.h"

namespace dsv4::model {
namespace {

// The layer behind the last one that makes entries; none where that is the last.
std::optional<size_t> FirstLayerOfTail(const Graph& graph) {
  const RankPlace& place = graph.weights.place;
  if (!graph.config.trunk->cuts_tail || !graph.shards.alone() || !place.first_stage() || !place.last_stage())
    return std::nullopt;
  size_t first = graph.layers.size();
  while (first > 0 && !graph.layers[first - 1].makes_entries()) --first;
  if (first == 0 || first == graph.layers.size()) return std::nullopt;
  if (graph.weights.dspark.has_value()) {
    const DsparkConfig& dspark = graph.weights.dspark->config;
    const int64_t first_tap = std::ranges::min(dspark.target_layer_ids);
    if (!dspark.taps_inputs || first_tap < graph.layers[first].number) return std::nullopt;
  }
  return first;
}

// Rows in front of one that counts behind the last layer on which it depends.
int64_t Reach(const Graph& graph, size_t first_layer) {
  return (graph.config.sliding_window - 1) * std::ssize(graph.layers.subspan(first_layer));
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
  const std::optional<size_t> first_layer = FirstLayerOfTail(graph);
  return first_layer.has_value() ? Reach(graph, *first_layer) + MostKeptRows(layout) : 0;
}

std::optional<PassTail> CutTail(const Graph& graph, std::span<const PassChunk> chunks, const PassPlan& plan) {
  const std::optional<size_t> first_layer = FirstLayerOfTail(graph);
  if (!first_layer.has_value() || plan.sequences.size() != chunks.size()) return std::nullopt;
  PassTail tail{.first_layer = *first_layer, .rows = {}, .chunk_rows = {}, .whole_from = {}, .plan = plan};
  const int64_t reach = Reach(graph, *first_layer);
  tail.plan.sequences.clear();
  tail.plan.num_tokens = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    PassSequence sequence = plan.sequences[i];
    const int64_t end = sequence.first_position + sequence.num_tokens;
    const int64_t first = std::clamp(chunks[i].exact_from - reach, sequence.first_position, end);
    tail.rows.push_back(
        {sequence.token_begin + first - sequence.first_position, sequence.token_begin + sequence.num_tokens});
    tail.chunk_rows.push_back(end - first);
    tail.whole_from.push_back(first > sequence.first_position ? chunks[i].exact_from : 0);
    if (first == end) continue;
    sequence.token_begin = tail.plan.num_tokens;
    sequence.first_position = first;
    sequence.num_tokens = end - first;
    tail.plan.sequences.push_back(sequence);
    tail.plan.num_tokens += sequence.num_tokens;
  }
  if (tail.plan.num_tokens == plan.num_tokens) return std::nullopt;
  KeepRows(tail.rows, 1, tail.plan.tokens);
  for (std::vector<int64_t>& rows : tail.plan.engram_rows)
    KeepRows(tail.rows, std::ssize(rows) / plan.num_tokens, rows);
  return tail;
}

Status EnterTail(const LayerStep& step, PassTail& tail, TrunkState& state) {
  PassPlan& plan = tail.plan;
  if (plan.num_tokens == 0) return {};
  const auto take = [&](TensorView& tensor) -> Status {
    if (tensor.is_null()) return {};
    const Shape shape = tensor.shape;
    DSV4_ASSIGN_OR_RETURN_STATUS(tensor, TakeRows(step, tensor, tail.rows, plan.num_tokens));
    if (shape.rank() == 3) tensor = tensor.Reshaped({plan.num_tokens, shape[1], shape[2]});
    return {};
  };
  const bool in_room = !state.selected.is_null() && state.selected.data == state.selection_room.data;
  DSV4_RETURN_IF_ERROR(take(state.streams));
  DSV4_RETURN_IF_ERROR(take(state.pre));
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
