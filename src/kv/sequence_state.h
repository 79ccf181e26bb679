// SequenceState: a sequence's KV cache, which is all that it remembers. Every layer has the window ring, the
// compressed entries, the indexer's keys and the raw rows of both compressors (cache_layout.h). Nothing else
// may keep per-sequence numbers.
//
// A step appends in three acts: BeginAppend reserves room, the ops write through the pointers handed out,
// CommitAppend moves the length. AbandonAppend takes the step back. Rings are keyed by absolute position, so
// Rewind only changes the length, and a row overwritten in the meantime is what limits it.
//
// Copies (Fork, Snapshot) share all memory; the first writer copies: the rings in one piece, pages one by
// one. Making a copy is therefore cheap and the copy never changes when the original does.
//
// Ownership: the state owns its memory through the Memory it was created with, which must outlive it.
// Pointers handed out are valid until the append ends. Threads: a state, its forks and its snapshots are used
// by one thread at a time. Errors leave the state unchanged unless said otherwise.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/cache_layout.h"
#include "kv/class_history.h"
#include "kv/lineage.h"
#include "kv/paged_store.h"
#include "kv/state_journal.h"
#include "tensor/rows.h"
#include "tensor/tensor.h"

namespace dsv4::kv {

class Snapshot;

// Slots of the rows of positions [begin, end), at most the ring's capacity, lie in it; source rows count from
// `source_begin`. Appends to *runs.
void AppendRingRuns(const RingRows& ring, int64_t begin, int64_t end, int64_t source_begin,
                    std::vector<RowRun>* runs);

// Home of a state where ranks divide whole sequences: the rank that has its rows. On other ranks the state
// has no rows but gets the same calls. It is as long there, and refuses the same calls.
struct StateHome {
  int place = 0;
  bool here = true;
};

class SequenceState {
 public:
  // An empty sequence. InvalidArgument for a layout that Validate refuses; ResourceExhausted without memory.
  // What happens to it and to its copies is written into `journal`, if there is one.
  static Result<SequenceState> Create(std::shared_ptr<const CacheLayout> layout, Memory& memory,
                                      Stream stream, std::shared_ptr<StateJournal> journal = nullptr,
                                      const StateHome& home = {});

  SequenceState(SequenceState&&) noexcept = default;
  SequenceState& operator=(SequenceState&&) noexcept = default;
  SequenceState& operator=(const SequenceState&) = delete;

  const CacheLayout& layout() const { return *layout_; }
  const StateHome& home() const { return home_; }
  // In the journal; 0 without one.
  uint64_t number() const { return entry_.number(); }
  // Tokens whose rows are in the state.
  int64_t length() const { return length_; }
  // An abandoned append overwrote rows that the next token needs: only Reset and Restore help.
  bool poisoned() const { return poisoned_; }
  bool appending() const { return num_appending_ > 0; }
  // Any token may follow. Otherwise a prompt is half read, rows of its end were not computed (LeaveOut), and
  // its own tokens have to follow.
  bool whole() const { return !Lacks(length_); }
  // The length from which on the state is whole.
  int64_t whole_from() const { return whole_from_; }

  // Whether the next num_tokens may follow, in appends of at most max_chunk_tokens: InvalidArgument when
  // there are none, OutOfRange past max_positions, FailedPrecondition when poisoned or appending.
  Status CheckAppend(int64_t num_tokens) const;
  // Makes room for tokens length() .. length() + num_tokens - 1. The errors of CheckAppend; InvalidArgument
  // for more than max_chunk_tokens; ResourceExhausted without memory.
  Status BeginAppend(int64_t num_tokens);
  // Classes of the append's tokens, before it is committed. Without them, as where a state is lengthened for
  // a measurement, all are kNoClass. Nothing is kept where the layout looks back to none.
  void SetClasses(std::span<const int32_t> classes);
  // Classes of the tokens in front of the append, or of the next one (ClassHistory::LookBack).
  void LookBack(std::span<int32_t> out) const { classes_.LookBack(out); }
  // The rows of the append are all written.
  void CommitAppend();
  // The append failed half-way. The length stays; the state is poisoned if rows the next token needs may be
  // overwritten (never after an append of at most max_rewind_tokens).
  void AbandonAppend();
  // A failed step ends here, however far it came. An open append is abandoned and the length goes back to
  // `length` (at most length()). The state is poisoned if rows that it needs are gone.
  void RollBack(int64_t length);

  // During an append of a state whose rows are here (num_rows of a paged store counts the entries that the
  // append completes). Pages have the rows of the layout's shard.
  RingRows Ring(int layer, RingKind kind) const;
  PagedRows Pages(int layer, PageKind kind) const;
  // Whether the window's ring has room for what the append's tokens see of each other. If not, the step keeps
  // these rows elsewhere while it runs, with those before them that they see.
  bool WindowFits() const;
  // The window rows of the append come from position `first` on alone, as WindowRuns and WindowFits then say;
  // until it ends.
  void UseAppendRows(int64_t first);
  // The append lacks window rows of some layers: once it is committed, no length in front of `whole_from` is
  // whole.
  void LeaveOut(int64_t whole_from);
  // Slots of the append's window rows (the last of them, as many as the ring keeps) and of its completed
  // entries that belong here. Source rows, one for every token or completed entry, count from `source_begin`.
  // Appends to *runs.
  void WindowRuns(int layer, int64_t source_begin, std::vector<RowRun>* runs) const;
  void EntryRuns(int layer, PageKind kind, int64_t source_begin, std::vector<RowRun>* runs) const;
  // Entries of a layer that the append completes, on this rank or another.
  int64_t NumNewEntries(int layer) const;

  // --- A draft block's rows (cache_layout.h), which come on their own -----------------------------------------------------------------
  // The slots that are made: at least those of CacheLayout::DraftSlots.
  int64_t num_draft_slots() const { return std::max(num_draft_slots_, CacheLayout::DraftSlots(length_)); }
  // Between BeginDraft and EndDraft, or in an append, a draft block's rows may be written: Ring and
  // WindowRuns are then of slots begin .. begin + count - 1, which UseDraftRows says (count 0: of the append
  // again). ResourceExhausted without memory.
  Status BeginDraft();
  void UseDraftRows(int64_t begin, int64_t count);
  // All slots are made (CacheLayout::MostDraftSlots); what was written behind is of no use any more.
  void EndDraft(bool made);

  // Takes the last num_tokens back. InvalidArgument when negative or more than length(); FailedPrecondition
  // when a ring no longer holds a row that is needed again (always possible up to max_rewind_tokens behind
  // the longest length reached). The same where the shorter state would not be whole.
  Status Rewind(int64_t num_tokens);
  // An empty sequence again, as after Create; also ends a poisoned state or an append.
  void Reset();

  // FailedPrecondition when poisoned or appending. The copy is whole where this one is.
  Result<SequenceState> Fork() const;
  Result<kv::Snapshot> Snapshot() const;
  // The first tokens whose rows this state and `other` have from one append, wherever they are: their whole
  // pages are shared (WholePageBytes).
  int64_t CommonLength(const SequenceState& other) const { return lineage_.CommonWith(other.lineage_); }
  // Becomes what the snapshot was. InvalidArgument when it belongs to another layout.
  Status Restore(const kv::Snapshot& snapshot);

 private:
  friend class kv::Snapshot;
  friend Status FillWithRandomRows(SequenceState& state, int64_t length, uint64_t seed);

  struct RingPlace {
    size_t offset_bytes = 0;  // In rings_.
    int64_t first_row = 0;    // Rows [first_row, length) are present.
  };
  struct Layer {
    std::array<RingPlace, kNumRingKinds> rings;
    std::array<PagedStore, kNumPageKinds> pages;
  };

  SequenceState() = default;
  SequenceState(const SequenceState&) = default;  // Shares memory; see Fork.

  bool Lacks(int64_t length) const { return length > left_out_from_ && length < whole_from_; }
  // Forgets it where nothing is left out in front of a length.
  void ForgetLeftOut(int64_t length);
  // Without the appending and the poisoned case, which callers check.
  Status CheckIdle(std::string_view action) const;
  // Calls visit(layer index, kind, ring) for every ring the layout has.
  template <typename Visit>
  void ForEachRing(Visit visit);
  void MarkOverwritten(int64_t end);
  // Memory of its own for the rings, with what they hold.
  Status OwnRings();

  std::shared_ptr<const CacheLayout> layout_;
  Memory* memory_ = nullptr;
  Stream stream_ = nullptr;
  int64_t length_ = 0;
  int64_t num_appending_ = 0;
  int64_t append_begin_ = -1;      // UseAppendRows
  int64_t append_whole_from_ = 0;  // LeaveOut
  int64_t left_out_from_ = 0;      // The lengths behind it and in front of whole_from_ are not whole.
  int64_t whole_from_ = 0;
  int64_t num_draft_slots_ = 0;
  bool drafting_ = false;
  int64_t draft_begin_ = 0;
  int64_t draft_count_ = 0;
  bool poisoned_ = false;
  StateHome home_;
  Lineage lineage_;
  ClassHistory classes_{0, 0};
  std::vector<int32_t> append_classes_;
  Buffer rings_;  // Rings of all layers; none where the rows are elsewhere.
  std::vector<Layer> layers_;
  JournalEntry entry_;
};

}  // namespace dsv4::kv
