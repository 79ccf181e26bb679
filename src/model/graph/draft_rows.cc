#include "model/graph/draft_rows.h"

#include <algorithm>
#include <iterator>

namespace dsv4::model {

int64_t NumRowsAt(std::span<const DraftRow> rows, int64_t place) {
  const auto ends_before = [&](const DraftRow& row) { return std::ssize(row.choices) <= place; };
  return std::ranges::find_if(rows, ends_before) - rows.begin();
}

TensorView AtPlace(const TensorView& all, int64_t place, int64_t num_rows) {
  return all.Rows(place, place + 1).Reshaped({all.shape[1]}).Rows(0, num_rows);
}

Status SampleDrafts(const LayerStep& step, std::span<const DraftRow> rows, int64_t place,
                    const TensorView& logits, const TensorView& allowed, const TensorView& tokens,
                    const TensorView& faults) {
  const int64_t num_rows = logits.shape[0];
  const int64_t vocab_size = step.context().config.vocab_size;
  ops::OpContext& context = *step.context().backend.context;
  std::vector<sampling::ChoiceParams> choices;
  for (int64_t i = 0; i < num_rows; ++i) {
    const DraftRow& row = rows[static_cast<size_t>(i)];
    choices.push_back(row.choices[static_cast<size_t>(place)]);
    if (row.logits == nullptr) continue;
    const TensorView from = logits.Rows(i, i + 1);
    DSV4_RETURN_IF_ERROR(context.memory().CopyToHost(
        row.logits + place * vocab_size, from.data, static_cast<size_t>(from.num_bytes()), context.stream()));
  }
  return step.Run("sample", step.ops().sample,
                  {.logits = logits,
                   .allowed = allowed,
                   .choices = choices,
                   .tokens = AtPlace(tokens, place, num_rows),
                   .faults = AtPlace(faults, place, num_rows)});
}

RingRows DraftRing(const kv::SequenceState& state, kv::RingKind kind) {
  return state.Ring(state.layout().DraftLayer(), kind);
}

Range DraftSlotsToMake(const PassSequence& sequence, int64_t window) {
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
