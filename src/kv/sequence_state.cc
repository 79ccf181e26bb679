// Lifecycle of a sequence's rows: append, commit, abandon, rewind, fork, draft rows and restore.
#include "kv/sequence_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/text.h"
#include "kv/snapshot.h"

namespace dsv4::kv {
namespace {

size_t Index(RingKind kind) { return static_cast<size_t>(kind); }
size_t Index(PageKind kind) { return static_cast<size_t>(kind); }

}  // namespace

void AppendRingRuns(const RingRows& ring, int64_t begin, int64_t end, int64_t source_begin,
                    std::vector<RowRun>* runs) {
  const int64_t row_bytes = ring.RowBytes();
  for (int64_t position = begin; position < end;) {
    const int64_t slot = position % ring.capacity;
    const int64_t num_rows = std::min(end - position, ring.capacity - slot);
    runs->push_back(
        {source_begin + (position - begin), num_rows, static_cast<std::byte*>(ring.data) + slot * row_bytes});
    position += num_rows;
  }
}

template <typename Visit>
void SequenceState::ForEachRing(Visit visit) {
  for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
    for (int i = 0; i < kNumRingKinds; ++i) {
      const auto kind = static_cast<RingKind>(i);
      if (layout_->HasRing(layer, kind))
        visit(layer, kind, layers_[static_cast<size_t>(layer)].rings[Index(kind)]);
    }
  }
}

Result<SequenceState> SequenceState::Create(std::shared_ptr<const CacheLayout> layout, Memory& memory,
                                            Stream stream, std::shared_ptr<StateJournal> journal,
                                            const StateHome& home) {
  DSV4_TRY(Validate(*layout));
  SequenceState state;
  state.layout_ = std::move(layout);
  state.memory_ = &memory;
  state.stream_ = stream;
  state.home_ = home;
  state.layers_.resize(state.layout_->layers.size());
  size_t num_bytes = 0;
  state.ForEachRing([&](int layer, RingKind kind, RingPlace& ring) {
    ring.offset_bytes = num_bytes;
    num_bytes += static_cast<size_t>(state.layout_->RingBytes(layer, kind));
  });
  if (home.here) {
    DSV4_ASSIGN_OR_RETURN(state.rings_, memory.Allocate(num_bytes));
  }
  state.Reset();
  state.entry_ = JournalEntry(std::move(journal), home.place);
  return state;
}

void SequenceState::Reset() {
  entry_.Reset();
  length_ = 0;
  lineage_.Cut(0);
  num_appending_ = 0;
  append_begin_ = -1;
  append_whole_from_ = left_out_from_ = whole_from_ = 0;
  num_draft_slots_ = 0;
  poisoned_ = false;
  classes_ = ClassHistory(layout_->look_back, layout_->max_rewind_tokens);
  append_classes_.clear();
  // No row before first_row = 0 is ever read, and blocks before the first are absent by position, so the old
  // rows need no clearing.
  ForEachRing([](int, RingKind, RingPlace& ring) { ring.first_row = 0; });
  for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
    for (int i = 0; i < kNumPageKinds; ++i) {
      const auto kind = static_cast<PageKind>(i);
      if (!layout_->HasPages(layer, kind)) continue;
      layers_[static_cast<size_t>(layer)].pages[Index(kind)] =
          PagedStore(layout_->rows_per_page, layout_->PageRowBytes(layer, kind));
    }
  }
}

Status SequenceState::CheckIdle(std::string_view action) const {
  if (appending()) {
    return FailedPrecondition(fmt::format("sequence state, {}: an append of {} has not ended", action,
                                          Counted(num_appending_, "token")));
  }
  if (poisoned_) {
    return FailedPrecondition(fmt::format(
        "sequence state, {}: a failed append of a long chunk overwrote rows that position {} needs; Reset or "
        "Restore it first",
        action, length_));
  }
  return {};
}

Status SequenceState::CheckAppend(int64_t num_tokens) const {
  DSV4_RETURN_IF_ERROR(CheckIdle("append"));
  if (num_tokens < 1) {
    return InvalidArgument(
        fmt::format("sequence state, append: got {}, want at least 1", Counted(num_tokens, "token")));
  }
  if (num_tokens > layout_->max_positions - length_) {
    return OutOfRange(fmt::format("sequence state, append: {} at position {} go past max_positions {}",
                                  Counted(num_tokens, "token"), length_, layout_->max_positions));
  }
  return {};
}

Status SequenceState::OwnRings() {
  if (rings_.unique()) return {};
  DSV4_ASSIGN_OR_RETURN_STATUS(Buffer copy, memory_->Allocate(rings_.num_bytes()));
  DSV4_RETURN_IF_ERROR(memory_->Copy(copy.data(), rings_.data(), rings_.num_bytes(), stream_));
  rings_ = std::move(copy);
  return {};
}

Status SequenceState::BeginDraft() {
  DSV4_RETURN_IF_ERROR(CheckIdle("draft"));
  if (layout_->DraftLayer() < 0) {
    return FailedPrecondition("sequence state, draft: the layout has no drafter");
  }
  if (length_ == 0) return FailedPrecondition("sequence state, draft: got no tokens, want at least 1");
  if (!whole()) {
    return FailedPrecondition(
        fmt::format("sequence state, draft: at {} of a prompt that is read to {} at least, want all of it",
                    Counted(length_, "token"), whole_from_));
  }
  if (home_.here) DSV4_RETURN_IF_ERROR(OwnRings());
  drafting_ = true;
  return {};
}

void SequenceState::UseDraftRows(int64_t begin, int64_t count) {
  DSV4_CHECK(drafting_ || appending()) << "length " << length_;
  draft_begin_ = begin;
  draft_count_ = count;
}

void SequenceState::EndDraft(bool made) {
  drafting_ = false;
  draft_count_ = 0;
  if (made) num_draft_slots_ = layout_->MostDraftSlots(length_);
}

Status SequenceState::BeginAppend(int64_t num_tokens) {
  DSV4_RETURN_IF_ERROR(CheckAppend(num_tokens));
  if (num_tokens > layout_->max_chunk_tokens) {
    return InvalidArgument(fmt::format("sequence state, append: got {}, want 1 to max_chunk_tokens {}",
                                       Counted(num_tokens, "token"), layout_->max_chunk_tokens));
  }
  lineage_.Reserve();
  if (!home_.here) {
    num_appending_ = num_tokens;
    return {};
  }
  DSV4_RETURN_IF_ERROR(OwnRings());
  for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
    const int64_t begin = layout_->NumEntryRows(layer, length_);
    const int64_t end = layout_->NumEntryRows(layer, length_ + num_tokens);
    for (int i = 0; i < kNumPageKinds; ++i) {
      const auto kind = static_cast<PageKind>(i);
      if (!layout_->HasPages(layer, kind)) continue;
      PagedStore& pages = layers_[static_cast<size_t>(layer)].pages[Index(kind)];
      DSV4_RETURN_IF_ERROR(
          pages.Reserve(*memory_, stream_, begin, end)
              .WithContext(fmt::format("sequence state, layer {}, {}", layer, PageKindName(kind))));
    }
  }
  num_appending_ = num_tokens;
  return {};
}

// Writing rows up to `end` overwrites those a ring's capacity before. The index first_row never passes
// length_. There the range of present rows is empty, whatever the slots hold.
void SequenceState::MarkOverwritten(int64_t end) {
  ForEachRing([&](int layer, RingKind kind, RingPlace& ring) {
    ring.first_row = std::min(length_, std::max(ring.first_row, end - layout_->RingCapacity(layer, kind)));
  });
}

void SequenceState::SetClasses(std::span<const int32_t> classes) {
  DSV4_CHECK(static_cast<int64_t>(classes.size()) == num_appending_)
      << classes.size() << " classes of " << num_appending_ << " tokens";
  append_classes_.assign(classes.begin(), classes.end());
}

void SequenceState::CommitAppend() {
  DSV4_CHECK(appending()) << "length " << length_;
  append_classes_.resize(static_cast<size_t>(num_appending_), kNoClass);
  classes_.Append(append_classes_);
  append_classes_.clear();
  if (append_whole_from_ > 0) {
    // As far as a state may be taken back, an older gap counts with this one.
    if (whole_from_ == 0 || length_ >= whole_from_ + layout_->max_rewind_tokens) left_out_from_ = length_;
    whole_from_ = std::max(whole_from_, append_whole_from_);
    append_whole_from_ = 0;
  }
  length_ += num_appending_;
  lineage_.Extend(length_);
  num_appending_ = 0;
  append_begin_ = -1;
  MarkOverwritten(length_);
}

void SequenceState::AbandonAppend() {
  DSV4_CHECK(appending()) << "length " << length_;
  RollBack(length_);
}

void SequenceState::RollBack(int64_t length) {
  DSV4_CHECK(length >= 0 && length <= length_) << length << " of " << length_;
  const int64_t end = length_ + num_appending_;
  num_appending_ = 0;
  append_begin_ = -1;
  append_whole_from_ = 0;
  draft_count_ = 0;
  length_ = length;
  ForgetLeftOut(length_);
  lineage_.Cut(length_);
  num_draft_slots_ = std::min(num_draft_slots_, layout_->MostDraftSlots(length));
  MarkOverwritten(end);
  ForEachRing([&](int layer, RingKind kind, RingPlace& ring) {
    if (layout_->FirstNeededRow(layer, kind, length_) < ring.first_row) poisoned_ = true;
  });
  append_classes_.clear();
  if (!classes_.Cut(length_).ok()) poisoned_ = true;
}

RingRows SequenceState::Ring(int layer, RingKind kind) const {
  DSV4_CHECK((appending() || drafting_) && home_.here && layout_->HasRing(layer, kind))
      << "layer " << layer << ", " << RingKindName(kind);
  const RingPlace& ring = layers_[static_cast<size_t>(layer)].rings[Index(kind)];
  return {static_cast<std::byte*>(rings_.data()) + ring.offset_bytes, layout_->RingCapacity(layer, kind),
          layout_->RingWidth(layer, kind), layout_->RingFormat(kind)};
}

PagedRows SequenceState::Pages(int layer, PageKind kind) const {
  DSV4_CHECK(appending() && home_.here && layout_->HasPages(layer, kind))
      << "layer " << layer << ", " << PageKindName(kind);
  return {layers_[static_cast<size_t>(layer)].pages[Index(kind)].pages(), layout_->rows_per_page,
          layout_->NumEntryRows(layer, length_ + num_appending_), layout_->PageWidth(layer, kind),
          layout_->PageFormat(kind)};
}

void SequenceState::WindowRuns(int layer, int64_t source_begin, std::vector<RowRun>* runs) const {
  const RingRows ring = Ring(layer, RingKind::kWindow);
  const int64_t begin = draft_count_ > 0 ? draft_begin_ : append_begin_ >= 0 ? append_begin_ : length_;
  const int64_t end = draft_count_ > 0 ? draft_begin_ + draft_count_ : length_ + num_appending_;
  const int64_t first = std::max(begin, end - ring.capacity);
  AppendRingRuns(ring, first, end, source_begin + (first - begin), runs);
}

bool SequenceState::WindowFits() const {
  if (draft_count_ > 0) return true;
  const int64_t begin = append_begin_ >= 0 ? append_begin_ : length_;
  const int64_t seen = std::min(layout_->window_size - 1, begin);
  return seen + length_ + num_appending_ - begin <= layout_->RingCapacity(0, RingKind::kWindow);
}

void SequenceState::UseAppendRows(int64_t first) {
  DSV4_CHECK(appending() && first >= length_ && first < length_ + num_appending_)
      << first << " of " << length_ << " and " << num_appending_;
  append_begin_ = first;
}

void SequenceState::LeaveOut(int64_t whole_from) {
  DSV4_CHECK(appending()) << "length " << length_;
  append_whole_from_ = whole_from;
}

void SequenceState::ForgetLeftOut(int64_t length) {
  if (length <= left_out_from_) left_out_from_ = whole_from_ = 0;
}

void SequenceState::EntryRuns(int layer, PageKind kind, int64_t source_begin,
                              std::vector<RowRun>* runs) const {
  DSV4_CHECK(appending() && layout_->HasPages(layer, kind))
      << "layer " << layer << ", " << PageKindName(kind);
  const PagedStore& pages = layers_[static_cast<size_t>(layer)].pages[Index(kind)];
  const EntryShard& shard = layout_->shard;
  const int64_t first_entry = layout_->NumEntries(layer, length_);
  const int64_t begin = layout_->NumEntryRows(layer, length_);
  const int64_t end = layout_->NumEntryRows(layer, length_ + num_appending_);
  if (shard.count == 1) return pages.AppendRuns(begin, end, source_begin, runs);
  for (int64_t row = begin; row < end; ++row)  // Neighbours here are none in the source.
    pages.AppendRuns(row, row + 1, source_begin + shard.Entry(row) - first_entry, runs);
}

int64_t SequenceState::NumNewEntries(int layer) const {
  return layout_->NumEntries(layer, length_ + num_appending_) - layout_->NumEntries(layer, length_);
}

Status SequenceState::Rewind(int64_t num_tokens) {
  DSV4_RETURN_IF_ERROR(CheckIdle("rewind"));
  if (num_tokens < 0 || num_tokens > length_) {
    return InvalidArgument(fmt::format("sequence state, rewind: got {}, want 0 to the length {}",
                                       Counted(num_tokens, "token"), length_));
  }
  const int64_t new_length = length_ - num_tokens;
  Status status;
  ForEachRing([&](int layer, RingKind kind, RingPlace& ring) {
    const int64_t needed = layout_->FirstNeededRow(layer, kind, new_length);
    // An empty range of rows is always present.
    if (!status.ok() || needed >= std::min(ring.first_row, new_length)) return;
    status = FailedPrecondition(fmt::format(
        "sequence state, layer {}, {}: rewinding {} of {} needs rows from position {}, kept from {} "
        "(max_rewind_tokens is {})",
        layer, RingKindName(kind), num_tokens, Counted(length_, "token"), needed, ring.first_row,
        layout_->max_rewind_tokens));
  });
  DSV4_RETURN_IF_ERROR(status);
  if (num_tokens > 0 && Lacks(new_length)) {
    return FailedPrecondition(fmt::format(
        "sequence state, rewind: at {}, rows of a prompt's beginning were left out, want {} or more",
        Counted(new_length, "token"), whole_from_));
  }
  DSV4_RETURN_IF_ERROR(classes_.Cut(new_length).WithContext("sequence state, rewind"));
  length_ = new_length;
  ForgetLeftOut(length_);
  lineage_.Cut(length_);
  num_draft_slots_ = std::min(num_draft_slots_, layout_->MostDraftSlots(length_));
  ForEachRing([&](int, RingKind, RingPlace& ring) { ring.first_row = std::min(ring.first_row, new_length); });
  entry_.Rewound(num_tokens);
  return {};
}

Result<SequenceState> SequenceState::Fork() const {
  DSV4_TRY(CheckIdle("fork"));
  return SequenceState(*this);
}

Result<kv::Snapshot> SequenceState::Snapshot() const {
  DSV4_TRY(CheckIdle("snapshot"));
  return kv::Snapshot(std::shared_ptr<const SequenceState>(new SequenceState(*this)));
}

Status SequenceState::Restore(const kv::Snapshot& snapshot) {
  const SequenceState& other = *snapshot.state_;
  if (other.layout_ != layout_) {
    return InvalidArgument(fmt::format(
        "sequence state, restore: the snapshot's cache layout {:016x} is not this sequence's {:016x}; use "
        "snapshots of the same model object",
        other.layout_->GeometryFingerprint(), layout_->GeometryFingerprint()));
  }
  *this = SequenceState(other);
  return {};
}

}  // namespace dsv4::kv
