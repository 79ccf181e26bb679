// Random cache rows on the number grid of real ones, for measurements at a depth.
#include "kv/random_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "base/text.h"
#include "formats/cache_rows.h"
#include "formats/number_formats.h"

namespace dsv4::kv {
namespace {

using Bytes = std::vector<std::byte>;

// splitmix64.
uint64_t Mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

enum class Grid { kAny, kE4m3, kE2m1 };  // Grids of numbers.

float OnGrid(Grid grid, float value) {
  switch (grid) {
    case Grid::kE4m3:
      return FloatFromE4m3(E4m3FromFloat(value));
    case Grid::kE2m1:
      return FloatFromE2m1(E2m1FromFloat(value));
    default:
      return value;
  }
}

// Rows of one width as they are stored, of which a sequence's are copies: to make each row anew would take
// longer than most measurements.
class RowTable {
 public:
  // Normal numbers on `grid`.
  static Result<RowTable> Make(const CacheFormat& format, int64_t width, Grid grid) {
    RowTable table;
    table.row_bytes_ = format.RowBytes(width);
    table.rows_.resize(static_cast<size_t>(kRows * table.row_bytes_));
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(width));
    for (int64_t row = 0; row < kRows; ++row) {
      for (float& value : values) value = OnGrid(grid, normal(random));
      DSV4_TRY(PackRow(format, values, table.rows_.data() + row * table.row_bytes_));
    }
    return table;
  }

  int64_t row_bytes() const { return row_bytes_; }
  // Row `index` of those with a seed of their own, to `to`.
  void Put(uint64_t seed, int64_t index, std::byte* to) const {
    const auto row = static_cast<int64_t>(Mixed(seed + static_cast<uint64_t>(index)) % kRows);
    std::memcpy(to, rows_.data() + row * row_bytes_, static_cast<size_t>(row_bytes_));
  }

 private:
  static constexpr int64_t kRows = 2048;
  int64_t row_bytes_ = 0;
  Bytes rows_;
};

// The table of a format, a width and a number grid, made once a process. That takes longer than to fill a
// sequence, and a batch has hundreds.
Result<const RowTable*> TableOf(const CacheFormat& format, int64_t width, Grid grid) {
  using Key = std::tuple<DType, CacheCode, CacheScale, int64_t, int64_t, int64_t, int64_t, Grid>;
  static std::mutex mutex;
  static std::map<Key, RowTable> tables;
  const std::scoped_lock lock(mutex);
  const Key key(format.dtype, format.code, format.scale, format.num_coded, format.group, format.alignment,
                width, grid);
  auto found = tables.find(key);
  if (found == tables.end()) {
    DSV4_ASSIGN_OR_RETURN(RowTable table, RowTable::Make(format, width, grid));
    found = tables.emplace(key, std::move(table)).first;
  }
  return &found->second;
}

Result<const RowTable*> TableOf(const CacheLayout& layout, int layer, PageKind kind) {
  const int64_t width = layout.PageWidth(layer, kind);
  if (kind == PageKind::kIndexerKeys) return TableOf(layout.key_format, width, Grid::kE2m1);
  const CacheFormat& entries = layout.entry_format;
  return TableOf(entries, width, entries.code == CacheCode::kE2m1 ? Grid::kE2m1 : Grid::kE4m3);
}

Result<const RowTable*> TableOf(const CacheLayout& layout, int layer, RingKind kind) {
  const int64_t width = layout.RingWidth(layer, kind);
  if (kind == RingKind::kWindow) return TableOf(layout.window_format, width, Grid::kE4m3);
  // The streams' format is that of e4m3 numbers too, unpacked.
  if (kind == RingKind::kDraftStreams) return TableOf(layout.RingFormat(kind), width, Grid::kE4m3);
  return TableOf(DType::kF32, width, Grid::kAny);
}

uint64_t SeedOf(uint64_t seed, int layer, int kind) {
  return Mixed(Mixed(seed) + static_cast<uint64_t>(layer) * 16 + static_cast<uint64_t>(kind));
}

// The entries that the append completes.
Status FillPages(const SequenceState& state, Memory& memory, Stream stream, uint64_t seed) {
  const CacheLayout& layout = state.layout();
  for (int layer = 0; layer < static_cast<int>(layout.layers.size()); ++layer) {
    for (const PageKind kind : {PageKind::kEntries, PageKind::kIndexerKeys}) {
      if (!layout.HasPages(layer, kind)) continue;
      DSV4_ASSIGN_OR_RETURN_STATUS(const RowTable* const rows, TableOf(layout, layer, kind));
      const uint64_t rows_seed = SeedOf(seed, layer, kNumRingKinds + static_cast<int>(kind));
      std::vector<RowRun> runs;
      const int64_t first = layout.NumEntries(layer, state.length());
      state.EntryRuns(layer, kind, first, &runs);
      // A page's runs go in one copy. Pages that lie together are no one piece of memory to a device.
      Bytes bytes;
      for (size_t i = 0; i < runs.size();) {
        auto* const begin = static_cast<std::byte*>(runs[i].destination);
        const auto page_of = [&](const RowRun& run) {
          return layout.shard.Row(run.source_begin) / layout.rows_per_page;
        };
        const int64_t page = page_of(runs[i]);
        bytes.clear();
        for (; i < runs.size() && page_of(runs[i]) == page; ++i) {
          for (int64_t row = 0; row < runs[i].num_rows; ++row) {
            bytes.resize(bytes.size() + static_cast<size_t>(rows->row_bytes()));
            rows->Put(rows_seed, runs[i].source_begin + row, bytes.data() + bytes.size() - rows->row_bytes());
          }
        }
        DSV4_RETURN_IF_ERROR(memory.CopyFromHost(begin, bytes.data(), bytes.size(), stream));
      }
    }
  }
  return {};
}

// Fills the rows of the rings that a sequence of `length` tokens needs.
Status FillRings(const SequenceState& state, int64_t length, Memory& memory, Stream stream, uint64_t seed) {
  const CacheLayout& layout = state.layout();
  for (int layer = 0; layer < static_cast<int>(layout.layers.size()); ++layer) {
    for (int i = 0; i < kNumRingKinds; ++i) {
      const auto kind = static_cast<RingKind>(i);
      if (!layout.HasRing(layer, kind)) continue;
      const RingRows ring = state.Ring(layer, kind);
      if (kind == RingKind::kDraftTokens) {  // Any token is one; all are the first.
        const Bytes zeros(static_cast<size_t>(ring.capacity * ring.RowBytes()));
        DSV4_RETURN_IF_ERROR(memory.CopyFromHost(ring.data, zeros.data(), zeros.size(), stream));
        continue;
      }
      DSV4_ASSIGN_OR_RETURN_STATUS(const RowTable* const rows, TableOf(layout, layer, kind));
      Bytes bytes(static_cast<size_t>(ring.capacity * rows->row_bytes()));
      for (int64_t p = layout.FirstNeededRow(layer, kind, length); p < length; ++p)
        rows->Put(SeedOf(seed, layer, i), p, bytes.data() + p % ring.capacity * rows->row_bytes());
      DSV4_RETURN_IF_ERROR(memory.CopyFromHost(ring.data, bytes.data(), bytes.size(), stream));
    }
  }
  return {};
}

}  // namespace

Status FillWithRandomRows(SequenceState& state, int64_t length, uint64_t seed) {
  if (state.length() > 0)
    return FailedPrecondition(
        fmt::format("random rows: the state has {}, want none", Counted(state.length(), "token")));
  while (state.length() < length) {
    const int64_t count = std::min(state.layout().max_chunk_tokens, length - state.length());
    DSV4_RETURN_IF_ERROR(state.BeginAppend(count));
    const bool here = state.home().here;
    Status status = here ? FillPages(state, *state.memory_, state.stream_, seed) : Status();
    // Rings are keyed by position, so those that the length needs can all be written in the last append.
    if (here && status.ok() && state.length() + count == length)
      status = FillRings(state, length, *state.memory_, state.stream_, seed);
    if (!status.ok()) {
      state.AbandonAppend();
      return status;
    }
    state.CommitAppend();
  }
  state.entry_.Filled(length, seed);
  return {};
}

}  // namespace dsv4::kv
