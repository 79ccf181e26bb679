// For tests: a small layout with every kind of layer, and functions that write and compare recognisable rows.
// A shadow of a sequence keeps every row in plain vectors.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "kv/sequence_state.h"
#include "kv/snapshot.h"
#include "tensor/host_memory_testing.h"

namespace dsv4::kv::testing {

inline CacheLayout SmallLayout(const EntryShard& shard = {}) {
  CacheLayout layout;
  layout.shard = shard;
  layout.layers = {{.ratio = 0, .overlap = false, .width = 2, .indexer_width = 0},
                   {.ratio = 4, .overlap = true, .width = 2, .indexer_width = 3},
                   {.ratio = 7, .overlap = false, .width = 2, .indexer_width = 0}};
  layout.window_size = 5;
  layout.window_format = layout.entry_format = layout.key_format = DType::kF32;
  layout.max_positions = 200;
  layout.max_chunk_tokens = 9;
  layout.max_rewind_tokens = 3;
  layout.rows_per_page = 3;
  return layout;
}

// Content of the row of a position (or entry): its own number and the branch that wrote it, so that any
// mix-up shows.
inline float RowValue(int kind, int64_t index, int branch) {
  return static_cast<float>((branch * 8 + kind) * 256 + index);  // Exact: below 2^24.
}

inline void FillRow(void* row, int64_t width, float value) {
  for (int64_t i = 0; i < width; ++i) static_cast<float*>(row)[i] = value;
}

// Appends and writes every row as a step would; the append stays open.
inline void BeginAndWrite(SequenceState& state, int64_t num_tokens, int branch) {
  const CacheLayout& layout = state.layout();
  const int64_t begin = state.length();
  const Status status = state.BeginAppend(num_tokens);
  ASSERT_TRUE(status.ok()) << status.ToString();
  for (int layer = 0; layer < static_cast<int>(layout.layers.size()); ++layer) {
    std::vector<RowRun> runs;
    state.WindowRuns(layer, 0, &runs);
    for (const RowRun& run : runs) {
      for (int64_t i = 0; i < run.num_rows; ++i) {
        FillRow(static_cast<std::byte*>(run.destination) + i * layout.RingRowBytes(layer, RingKind::kWindow),
                layout.RingWidth(layer, RingKind::kWindow),
                RowValue(0, begin + run.source_begin + i, branch));
      }
    }
    for (int i = 1; i < kNumRingKinds; ++i) {  // As the pool op does: the last `capacity` tokens.
      const auto kind = static_cast<RingKind>(i);
      if (!layout.HasRing(layer, kind)) continue;
      const RingRows ring = state.Ring(layer, kind);
      for (int64_t p = std::max(begin, begin + num_tokens - ring.capacity); p < begin + num_tokens; ++p) {
        FillRow(static_cast<std::byte*>(ring.data) + p % ring.capacity * layout.RingRowBytes(layer, kind),
                ring.width, RowValue(i, p, branch));
      }
    }
    for (int i = 0; i < kNumPageKinds; ++i) {
      const auto kind = static_cast<PageKind>(i);
      if (!layout.HasPages(layer, kind)) continue;
      runs.clear();
      state.EntryRuns(layer, kind, 0, &runs);
      int64_t written = 0;
      for (const RowRun& run : runs) {
        for (int64_t r = 0; r < run.num_rows; ++r, ++written) {
          FillRow(static_cast<std::byte*>(run.destination) + r * layout.PageRowBytes(layer, kind),
                  layout.PageWidth(layer, kind),
                  RowValue(5 + i, layout.NumEntries(layer, begin) + run.source_begin + r, branch));
        }
      }
      ASSERT_EQ(written, layout.NumEntryRows(layer, begin + num_tokens) - layout.NumEntryRows(layer, begin));
    }
  }
}

inline void Append(SequenceState& state, int64_t num_tokens, int branch) {
  BeginAndWrite(state, num_tokens, branch);
  state.CommitAppend();
}

// Which branch wrote the row of each position, and each entry of a ratio.
class Shadow {
 public:
  explicit Shadow(std::shared_ptr<const CacheLayout> layout) : layout_(std::move(layout)) {
    entries_.resize(layout_->layers.size());
  }

  void Append(int64_t num_tokens, int branch) {
    positions_.insert(positions_.end(), static_cast<size_t>(num_tokens), branch);
    for (int layer = 0; layer < static_cast<int>(entries_.size()); ++layer) {
      entries_[static_cast<size_t>(layer)].resize(static_cast<size_t>(layout_->NumEntries(layer, length())),
                                                  branch);
    }
  }
  void Rewind(int64_t num_tokens) {
    positions_.resize(positions_.size() - static_cast<size_t>(num_tokens));
    for (int layer = 0; layer < static_cast<int>(entries_.size()); ++layer) {
      entries_[static_cast<size_t>(layer)].resize(static_cast<size_t>(layout_->NumEntries(layer, length())));
    }
  }

  int64_t length() const { return static_cast<int64_t>(positions_.size()); }
  int position(int64_t p) const { return positions_[static_cast<size_t>(p)]; }
  int entry(int layer, int64_t j) const {
    return entries_[static_cast<size_t>(layer)][static_cast<size_t>(j)];
  }

 private:
  std::shared_ptr<const CacheLayout> layout_;
  std::vector<int> positions_;
  std::vector<std::vector<int>> entries_;  // Per layer.
};

// Every row that the next token needs is there. Looks through an append of one token on a fork, so the state
// is untouched.
inline void ExpectEqual(const SequenceState& original, const Shadow& shadow) {
  ASSERT_EQ(original.length(), shadow.length());
  const CacheLayout& layout = original.layout();
  if (original.length() == layout.max_positions) return;
  auto state = original.Fork();
  ASSERT_TRUE(state.has_value()) << state.error().ToString();
  const Status begun = state->BeginAppend(1);
  ASSERT_TRUE(begun.ok()) << begun.ToString();
  for (int layer = 0; layer < static_cast<int>(layout.layers.size()); ++layer) {
    for (int i = 0; i < kNumRingKinds; ++i) {
      const auto kind = static_cast<RingKind>(i);
      if (!layout.HasRing(layer, kind)) continue;
      const RingRows ring = state->Ring(layer, kind);
      for (int64_t p = layout.FirstNeededRow(layer, kind, shadow.length()); p < shadow.length(); ++p) {
        const auto* row = static_cast<const float*>(ring.data) + p % ring.capacity * ring.width;
        for (int64_t c = 0; c < ring.width; ++c) {
          ASSERT_EQ(row[c], RowValue(i, p, shadow.position(p)))
              << "layer " << layer << ", " << RingKindName(kind) << ", position " << p;
        }
      }
    }
    for (int i = 0; i < kNumPageKinds; ++i) {
      const auto kind = static_cast<PageKind>(i);
      if (!layout.HasPages(layer, kind)) continue;
      const PagedRows pages = state->Pages(layer, kind);
      ASSERT_EQ(pages.num_rows, layout.NumEntryRows(layer, shadow.length() + 1));
      for (int64_t j = 0; j < layout.NumEntryRows(layer, shadow.length()); ++j) {
        const auto* row =
            static_cast<const float*>(pages.pages[static_cast<size_t>(j / pages.rows_per_page)]) +
            j % pages.rows_per_page * pages.width;
        for (int64_t c = 0; c < pages.width; ++c) {
          const int64_t entry = layout.shard.Entry(j);
          ASSERT_EQ(row[c], RowValue(5 + i, entry, shadow.entry(layer, entry)))
              << "layer " << layer << ", " << PageKindName(kind) << ", entry " << entry;
        }
      }
    }
  }
}

// Host memory that can be told to run out.
class FailingMemory final : public ForwardingHostMemory {
 public:
  // The next `count` allocations succeed, then none; negative: all succeed.
  void FailAfter(int count) { remaining_ = count; }

  Result<Buffer> Allocate(size_t num_bytes) override {
    if (remaining_ == 0) return Error(ResourceExhausted("test memory: no room"));
    if (remaining_ > 0) --remaining_;
    return HostMemory().Allocate(num_bytes);
  }

 private:
  int remaining_ = -1;
};

}  // namespace dsv4::kv::testing
