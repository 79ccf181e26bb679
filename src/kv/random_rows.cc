#include "kv/random_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "formats/number_formats.h"

namespace dsv4::kv {
namespace {

using Bytes = std::vector<std::byte>;

// Rows are pieces of these tables; a few times the longest row, so that rows differ.
constexpr size_t kTableElements = size_t{1} << 16;

Bytes Stored(std::span<const float> values, DType dtype) {
  Bytes bytes(values.size() * static_cast<size_t>(ElementBytes(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(bytes.data() + i * sizeof(float), &values[i], sizeof(float));
    } else {
      const uint16_t code = Bf16FromFloat(values[i]);
      std::memcpy(bytes.data() + i * sizeof(code), &code, sizeof(code));
    }
  }
  return bytes;
}

// Of one row dtype.
struct Tables {
  explicit Tables(DType row_dtype) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<float> values(kTableElements);
    for (float& value : values) value = normal(random);
    raw = Stored(values, DType::kF32);
    std::vector<float> on_grid = values;
    for (float& value : on_grid) value = FloatFromE2m1(E2m1FromFloat(value));
    keys = Stored(on_grid, row_dtype);
    for (float& value : values) value = FloatFromE4m3(E4m3FromFloat(value));
    rows = Stored(values, row_dtype);
  }
  Bytes rows;  // Window rows and entries.
  Bytes keys;  // The indexer's.
  Bytes raw;   // F32 values and scores of compressors.
};

// splitmix64.
uint64_t Mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

// Which rows are written: of a layer and a kind of store.
struct Rows {
  const Bytes& table;
  int64_t row_bytes = 0;
  uint64_t seed = 0;  // Of these rows alone.

  Status Check() const {
    if (static_cast<size_t>(row_bytes) <= table.size()) return {};
    return OutOfRange(
        fmt::format("random rows: a row of {} bytes, the table has {}", row_bytes, table.size()));
  }
  // Row `index` of the sequence to `to`.
  void Put(int64_t index, std::byte* to) const {
    const size_t places = (table.size() - static_cast<size_t>(row_bytes)) / sizeof(float) + 1;
    const size_t offset = Mixed(seed + static_cast<uint64_t>(index)) % places * sizeof(float);
    std::memcpy(to, table.data() + offset, static_cast<size_t>(row_bytes));
  }
};

uint64_t SeedOf(uint64_t seed, int layer, int kind) {
  return Mixed(Mixed(seed) + static_cast<uint64_t>(layer) * 16 + static_cast<uint64_t>(kind));
}

// The entries that the append completes.
Status FillPages(const SequenceState& state, const Tables& tables, Memory& memory, Stream stream,
                 uint64_t seed) {
  const CacheLayout& layout = state.layout();
  for (int layer = 0; layer < static_cast<int>(layout.layers.size()); ++layer) {
    for (const PageKind kind : {PageKind::kEntries, PageKind::kIndexerKeys}) {
      if (!layout.HasPages(layer, kind)) continue;
      const Rows rows = {kind == PageKind::kEntries ? tables.rows : tables.keys,
                         layout.PageRowBytes(layer, kind),
                         SeedOf(seed, layer, kNumRingKinds + static_cast<int>(kind))};
      DSV4_RETURN_IF_ERROR(rows.Check());
      std::vector<RowRun> runs;
      const int64_t first = layout.NumEntries(layer, state.length());
      state.EntryRuns(layer, kind, first, &runs);
      // What the runs have of a page goes in one copy. Pages that lie together are no one piece of memory to a device.
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
            bytes.resize(bytes.size() + static_cast<size_t>(rows.row_bytes));
            rows.Put(runs[i].source_begin + row, bytes.data() + bytes.size() - rows.row_bytes);
          }
        }
        DSV4_RETURN_IF_ERROR(memory.CopyFromHost(begin, bytes.data(), bytes.size(), stream));
      }
    }
  }
  return {};
}

// What a sequence of `length` tokens needs of its rings.
Status FillRings(const SequenceState& state, int64_t length, const Tables& tables, Memory& memory,
                 Stream stream, uint64_t seed) {
  const CacheLayout& layout = state.layout();
  for (int layer = 0; layer < static_cast<int>(layout.layers.size()); ++layer) {
    for (int i = 0; i < kNumRingKinds; ++i) {
      const auto kind = static_cast<RingKind>(i);
      if (!layout.HasRing(layer, kind)) continue;
      const RingRows ring = state.Ring(layer, kind);
      const Rows rows = {kind == RingKind::kWindow ? tables.rows : tables.raw,
                         layout.RingRowBytes(layer, kind), SeedOf(seed, layer, i)};
      DSV4_RETURN_IF_ERROR(rows.Check());
      Bytes bytes(static_cast<size_t>(ring.capacity * rows.row_bytes));
      for (int64_t p = layout.FirstNeededRow(layer, kind, length); p < length; ++p)
        rows.Put(p, bytes.data() + p % ring.capacity * rows.row_bytes);
      DSV4_RETURN_IF_ERROR(memory.CopyFromHost(ring.data, bytes.data(), bytes.size(), stream));
    }
  }
  return {};
}

}  // namespace

Status FillWithRandomRows(SequenceState& state, int64_t length, uint64_t seed) {
  if (state.length() > 0)
    return FailedPrecondition(fmt::format("random rows: the state has {} tokens, want none", state.length()));
  const Tables tables(state.layout().row_dtype);
  while (state.length() < length) {
    const int64_t count = std::min(state.layout().max_chunk_tokens, length - state.length());
    DSV4_RETURN_IF_ERROR(state.BeginAppend(count));
    const bool here = state.home().here;
    Status status = here ? FillPages(state, tables, *state.memory_, state.stream_, seed) : Status();
    // Rings are keyed by position, so those that the length needs can all be written in the last append.
    if (here && status.ok() && state.length() + count == length)
      status = FillRings(state, length, tables, *state.memory_, state.stream_, seed);
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
