// How cached rows are laid out in memory, as plain pointers: what `kv` hands to the ops.
//
// A RingRows holds the row of absolute position p at slot p mod capacity: the sliding window and the
// compressors' raw rows. A PagedRows holds entry j in page j / rows_per_page: compressed and indexer entries,
// which only grow.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/cache_format.h"

namespace dsv4 {

// Consecutive numbers [begin, end).
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool empty() const { return begin == end; }
  friend bool operator==(const Range& a, const Range& b) = default;
};

struct RingRows {
  void* data = nullptr;  // [capacity] rows of RowBytes(), contiguous
  int64_t capacity = 0;
  int64_t width = 0;
  CacheFormat format;

  int64_t RowBytes() const { return format.RowBytes(width); }
};

struct PagedRows {
  std::span<void* const>
      pages;  // Each [rows_per_page] rows of RowBytes(), contiguous; borrowed for the call.
  int64_t rows_per_page = 0;
  int64_t num_rows = 0;  // Valid entries, those of this step included.
  int64_t width = 0;
  CacheFormat format;

  int64_t RowBytes() const { return format.RowBytes(width); }
};

// Which entries of a sequence lie here when several ranks share them: every `count`th, from `index` on. Each
// rank then has as many as any other, up to one, at every length, and an entry never moves.
struct EntryShard {
  int64_t index = 0;
  int64_t count = 1;

  bool Has(int64_t entry) const { return entry % count == index; }
  // The row that an entry is among those here, and back.
  int64_t Row(int64_t entry) const { return entry / count; }
  int64_t Entry(int64_t row) const { return row * count + index; }
  // How many of entries [0, num_entries) lie here.
  int64_t NumRows(int64_t num_entries) const { return (num_entries + count - 1 - index) / count; }
  friend bool operator==(const EntryShard& a, const EntryShard& b) = default;
};

// `num_rows` consecutive rows of the source go to consecutive rows at `destination`.
struct RowRun {
  int64_t source_begin = 0;
  int64_t num_rows = 0;
  void* destination = nullptr;
};

}  // namespace dsv4
