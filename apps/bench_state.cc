#include "apps/bench_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "formats/number_formats.h"

namespace dsv4::apps {
namespace {

// Rows are pieces of these tables; a few times the longest row, so that rows differ.
constexpr size_t kTableElements = size_t{1} << 16;

std::vector<std::byte> Stored(std::span<const float> values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(ElementBytes(dtype)));
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

}  // namespace

RandomRows::RandomRows(Memory& memory, Stream stream, DType row_dtype) : memory_(memory), stream_(stream) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(kTableElements);
  for (float& value : values) value = normal(random);
  raw_ = Stored(values, DType::kF32);
  std::vector<float> keys = values;
  for (float& value : values) value = FloatFromE4m3(E4m3FromFloat(value));
  for (float& key : keys) key = FloatFromE2m1(E2m1FromFloat(key));
  rows_ = Stored(values, row_dtype);
  keys_ = Stored(keys, row_dtype);
}

Status RandomRows::CopyRows(const Bytes& source, void* destination, int64_t num_rows, int64_t row_bytes,
                            std::mt19937_64& random) const {
  const auto size = static_cast<size_t>(row_bytes);
  if (size > source.size()) {
    return OutOfRange(fmt::format("random rows: a row of {} bytes, the table has {}", size, source.size()));
  }
  for (int64_t i = 0; i < num_rows; ++i) {
    const size_t offset = random() % ((source.size() - size) / sizeof(float) + 1) * sizeof(float);
    DSV4_RETURN_IF_ERROR(memory_.CopyFromHost(static_cast<std::byte*>(destination) + i * row_bytes,
                                              source.data() + offset, size, stream_));
  }
  return {};
}

Status RandomRows::FillPages(const kv::SequenceState& state, std::mt19937_64& random) const {
  const kv::CacheLayout& layout = state.layout();
  for (int layer = 0; layer < static_cast<int>(layout.layers.size()); ++layer) {
    for (const kv::PageKind kind : {kv::PageKind::kEntries, kv::PageKind::kIndexerKeys}) {
      if (!layout.HasPages(layer, kind)) continue;
      std::vector<RowRun> runs;
      state.EntryRuns(layer, kind, 0, &runs);
      const Bytes& source = kind == kv::PageKind::kEntries ? rows_ : keys_;
      for (const RowRun& run : runs) {
        DSV4_RETURN_IF_ERROR(
            CopyRows(source, run.destination, run.num_rows, layout.PageRowBytes(layer, kind), random));
      }
    }
  }
  return {};
}

Status RandomRows::FillRings(const kv::SequenceState& state, int64_t length, std::mt19937_64& random) const {
  const kv::CacheLayout& layout = state.layout();
  for (int layer = 0; layer < static_cast<int>(layout.layers.size()); ++layer) {
    for (int i = 0; i < kv::kNumRingKinds; ++i) {
      const auto kind = static_cast<kv::RingKind>(i);
      if (!layout.HasRing(layer, kind)) continue;
      const RingRows ring = state.Ring(layer, kind);
      const int64_t row_bytes = layout.RingRowBytes(layer, kind);
      const Bytes& source = kind == kv::RingKind::kWindow ? rows_ : raw_;
      for (int64_t p = layout.FirstNeededRow(layer, kind, length); p < length; ++p) {
        void* slot = static_cast<std::byte*>(ring.data) + p % ring.capacity * row_bytes;
        DSV4_RETURN_IF_ERROR(CopyRows(source, slot, 1, row_bytes, random));
      }
    }
  }
  return {};
}

Status RandomRows::Fill(kv::SequenceState& state, int64_t length, uint64_t seed) const {
  std::mt19937_64 random(seed);
  while (state.length() < length) {
    const int64_t count = std::min(state.layout().max_chunk_tokens, length - state.length());
    DSV4_RETURN_IF_ERROR(state.BeginAppend(count));
    Status status = FillPages(state, random);
    // Rings are keyed by position, so those that the length needs can all be written in the last append.
    if (status.ok() && state.length() + count == length) status = FillRings(state, length, random);
    if (!status.ok()) {
      state.AbandonAppend();
      return status;
    }
    state.CommitAppend();
  }
  return {};
}

}  // namespace dsv4::apps
