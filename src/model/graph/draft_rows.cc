// Rows that drafters keep of a sequence: rings, slots to make, and gathers over shards and stages.
#include "model/graph/draft_rows.h"

#include <algorithm>
#include <iterator>

namespace dsv4::model {

DraftShards::DraftShards(const Graph& graph, std::span<const DraftRow> rows)
    : graph_(graph),
      divided_(graph.weights.place.placement.divide_sequences && !graph.shards.alone()),
      chooses_(graph.weights.place.rank == 0) {
  for (const DraftRow& row : rows) {
    if (row.state->home().here) here_.push_back(std::ssize(place_));
    place_.push_back(row.state->home().place);
  }
}

int64_t DraftShards::NumHere(int64_t num_rows) const {
  return std::ranges::lower_bound(here_, num_rows) - here_.begin();
}

void DraftShards::Enter(StepContext& context, int64_t num_rows, int64_t size) const {
  if (!divided_) return;
  context.shards = Shards();
  context.shard_tokens.assign(static_cast<size_t>(graph_.weights.place.num_shards()), 0);
  for (int64_t i = 0; i < num_rows; ++i)
    context.shard_tokens[static_cast<size_t>(place_[static_cast<size_t>(i)])] += size;
}

Result<TensorView> DraftShards::Gather(const LayerStep& step, const TensorView& mine, int64_t num_rows,
                                       int64_t size) const {
  if (!divided_) return mine;
  StepContext together = step.context();
  together.shards = graph_.shards;
  const LayerStep of_all(together);
  DSV4_ASSIGN_OR_RETURN(const TensorView gathered, GatherRows(of_all, mine, step.context().shard_tokens));
  DSV4_ASSIGN_OR_RETURN(const TensorView ordered, step.NewTensor(mine.dtype, gathered.shape));
  std::vector<RowRun> runs;
  int64_t from = 0;
  for (int place = 0; place < graph_.weights.place.num_shards(); ++place) {
    for (int64_t i = 0; i < num_rows; ++i) {
      if (place_[static_cast<size_t>(i)] != place) continue;
      runs.push_back({from, size, ordered.Rows(i * size, (i + 1) * size).data});
      from += size;
    }
  }
  DSV4_TRY(step.StoreRows("draft.rows", gathered, runs));
  return ordered;
}

Result<TensorView> DraftShards::GatherLogits(const LayerStep& step, const TensorView& part) const {
  StepContext together = step.context();
  together.shards = graph_.shards;
  return GatherColumns(LayerStep(together), "draft.logits", part, graph_.weights.head_split);
}

Result<TensorView> DraftShards::Share(const LayerStep& step, const TensorView& tokens,
                                      const TensorView& ids) const {
  if (graph_.shards.alone()) return tokens;
  const int64_t num_rows = tokens.shape[0];
  const auto num_shards = graph_.shards.group->size();
  DSV4_ASSIGN_OR_RETURN(const TensorView gathered, step.NewTensor(DType::kI32, {num_shards, num_rows}));
  const std::vector<int64_t> piece_bytes(static_cast<size_t>(num_shards), tokens.num_bytes());
  DSV4_TRY(graph_.shards.group->AllGather(Bytes(tokens), 1, piece_bytes, Bytes(gathered))
               .WithContext("drafted tokens"));
  std::vector<RowRun> runs;
  for (int64_t k = 0; k < ids.shape[0]; ++k) {
    const int64_t row = here_[static_cast<size_t>(k)];
    if (!runs.empty() && runs.back().source_begin + runs.back().num_rows == row) {
      ++runs.back().num_rows;
    } else {
      runs.push_back({row, 1, ids.Rows(k, k + 1).data});
    }
  }
  if (runs.empty()) return ids;
  // Rank 0's are the first.
  DSV4_TRY(step.StoreRows("drafted tokens", gathered.Rows(0, 1).Reshaped({num_rows, 1}), runs));
  return ids;
}

KeptRows::KeptRows(const PassPlan& pass) {
  for (const PassSequence& sequence : pass.sequences) {
    const int64_t capacity = sequence.state->layout().DraftWindowRows();
    const int64_t left_out = std::max<int64_t>(0, sequence.num_tokens - capacity);
    first_row.push_back(sequence.token_begin + left_out);
    plan.sequences.push_back({.state = sequence.state,
                              .token_begin = plan.num_tokens,
                              .num_tokens = sequence.num_tokens - left_out,
                              .first_position = sequence.first_position + left_out});
    plan.num_tokens += sequence.num_tokens - left_out;
  }
}

namespace {

// Kept rows of the sequence in `range` of the pass.
Range KeptIn(const KeptRows& kept, size_t sequence, const Range& range) {
  const int64_t first = kept.first_row[sequence];
  const int64_t begin = std::max(first, range.begin);
  return {begin, std::max(begin, std::min(first + kept.plan.sequences[sequence].num_tokens, range.end))};
}

}  // namespace

std::vector<Range> KeptHere(const StepContext& context, const KeptRows& kept) {
  const Range own = context.own_rows();
  std::vector<Range> here;
  for (size_t i = 0; i < kept.plan.sequences.size(); ++i) {
    const Range rows = KeptIn(kept, i, own);
    if (!rows.empty()) here.push_back({rows.begin - own.begin, rows.end - own.begin});
  }
  return here;
}

int64_t NumRows(std::span<const Range> ranges) {
  int64_t num_rows = 0;
  for (const Range& range : ranges) num_rows += range.size();
  return num_rows;
}

Result<TensorView> GatherKept(const StepContext& context, const KeptRows& kept, const TensorView& mine) {
  if (!context.divide_streams()) return mine;
  std::vector<int64_t> counts;
  for (size_t shard = 0; shard < context.stream_rows.size(); ++shard) {
    counts.push_back(0);
    const Range range = PartOf(context.stream_rows, static_cast<int>(shard));
    for (size_t i = 0; i < kept.plan.sequences.size(); ++i) counts.back() += KeptIn(kept, i, range).size();
  }
  return GatherRows(LayerStep(context), mine, counts);
}

Result<TensorView> BringToFirstStage(const StepContext& context, const Graph& graph, int stage,
                                     const TensorView& mine, const Shape& shape) {
  const RankPlace& place = graph.weights.place;
  if (stage == 0) return mine;
  if (place.stage() == stage && shape[0] > 0) {
    DSV4_TRY(graph.group->Send(Bytes(mine), place.shard()).WithContext("rows for drafts"));
  }
  if (!place.first_stage()) return mine;
  DSV4_ASSIGN_OR_RETURN(const TensorView rows,
                        LayerStep(context).NewTensor(context.activation_dtype(), shape));
  if (shape[0] > 0) {
    DSV4_TRY(graph.group->Recv(Bytes(rows), place.shard() + stage * place.num_shards())
                 .WithContext("rows for drafts"));
  }
  return rows;
}

int64_t NumRowsAt(std::span<const DraftRow> rows, int64_t depth) {
  const auto ends_before = [&](const DraftRow& row) { return std::ssize(row.choices) <= depth; };
  return std::ranges::find_if(rows, ends_before) - rows.begin();
}

TensorView AtDepth(const TensorView& all, int64_t depth, int64_t num_rows) {
  return all.Rows(depth, depth + 1).Reshaped({all.shape[1]}).Rows(0, num_rows);
}

Status SampleDrafts(const LayerStep& step, std::span<const DraftRow> rows, int64_t depth,
                    const TensorView& logits, const TensorView& allowed, const TensorView& tokens,
                    const TensorView& faults) {
  const int64_t num_rows = logits.shape[0];
  const int64_t vocab_size = step.context().config.vocab_size;
  ops::OpContext& context = *step.context().backend.context;
  std::vector<sampling::ChoiceParams> choices;
  for (int64_t i = 0; i < num_rows; ++i) {
    const DraftRow& row = rows[static_cast<size_t>(i)];
    choices.push_back(row.choices[static_cast<size_t>(depth)]);
    if (row.logits == nullptr) continue;
    const TensorView from = logits.Rows(i, i + 1);
    DSV4_RETURN_IF_ERROR(context.memory().CopyToHost(
        row.logits + depth * vocab_size, from.data, static_cast<size_t>(from.num_bytes()), context.stream()));
  }
  return step.Run("sample", step.ops().sample,
                  {.logits = logits,
                   .allowed = allowed,
                   .choices = choices,
                   .tokens = AtDepth(tokens, depth, num_rows),
                   .faults = AtDepth(faults, depth, num_rows)});
}

RingRows DraftRing(const kv::SequenceState& state, kv::RingKind kind) {
  return state.Ring(state.layout().DraftLayer(), kind);
}

Range DraftSlotsToMake(const PassSequence& sequence, int64_t window) {
  if (sequence.slots_later) return {};
  const kv::SequenceState& state = *sequence.state;
  const int64_t end = kv::CacheLayout::DraftSlots(sequence.first_position + sequence.num_tokens);
  const int64_t begin = std::max(state.num_draft_slots(), end - window - state.layout().max_rewind_tokens);
  return {std::min(begin, end), end};
}

void Stretches::Add(void* data, int64_t num_rows) {
  if (num_rows == 0) return;
  starts_.push_back(data);
  counts_.push_back(num_rows);
  total_ += num_rows;
}

void Stretches::Add(const RingRows& ring, int64_t begin, int64_t end) {
  while (begin < end) {
    const int64_t slot = begin % ring.capacity;
    const int64_t count = std::min(end - begin, ring.capacity - slot);
    Add(static_cast<std::byte*>(ring.data) + slot * ring.RowBytes(), count);
    begin += count;
  }
}

Result<TensorView> Stretches::Gather(const LayerStep& step, std::string_view name) const {
  DSV4_ASSIGN_OR_RETURN(const TensorView rows, step.NewTensor(format_.dtype, {total_, width_}));
  std::vector<PagedRows> sources;
  for (size_t i = 0; i < starts_.size(); ++i) {
    sources.push_back({.pages = std::span(starts_).subspan(i, 1),
                       .rows_per_page = counts_[i],
                       .num_rows = counts_[i],
                       .width = width_,
                       .format = format_});
  }
  DSV4_TRY(step.Run(name, step.ops().gather_rows, {.sources = sources, .rows = rows}));
  return rows;
}

void Slots::Add(kv::SequenceState& state, int64_t begin, int64_t end) {
  plan.sequences.push_back(
      {.state = &state, .token_begin = plan.num_tokens, .num_tokens = end - begin, .first_position = begin});
  plan.num_tokens += end - begin;
}

Result<TensorView> UploadToStep(const LayerStep& step, DType dtype, const Shape& shape, const void* values) {
  DSV4_ASSIGN_OR_RETURN(const TensorView tensor, step.NewTensor(dtype, shape));
  ops::OpContext& context = *step.context().backend.context;
  DSV4_TRY(context.memory().CopyFromHost(tensor.data, values, static_cast<size_t>(tensor.num_bytes()),
                                         context.stream()));
  return tensor;
}

Result<TensorView> UploadPositions(const LayerStep& step, const PassPlan& plan) {
  std::vector<int32_t> positions;
  for (const PassSequence& sequence : plan.sequences) {
    for (int64_t i = 0; i < sequence.num_tokens; ++i)
      positions.push_back(static_cast<int32_t>(sequence.first_position + i));
  }
  return UploadToStep(step, DType::kI32, {plan.num_tokens}, positions.data());
}

void KeptRuns(const PassPlan& plan, const PassArrays::Of& of, std::vector<RowRun>* out) {
  const auto kind = of.which == 0 ? kv::RingKind::kDraftStreams : kv::RingKind::kDraftTokens;
  for (const PassSequence& sequence : plan.sequences) {
    const RingRows ring = sequence.state->Ring(of.layer, kind);
    const int64_t end = sequence.first_position + sequence.num_tokens;
    const int64_t begin = std::max(sequence.first_position, end - ring.capacity);
    kv::AppendRingRuns(ring, begin, end, sequence.token_begin + begin - sequence.first_position, out);
  }
}

}  // namespace dsv4::model
