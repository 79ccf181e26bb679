// Bytes of a snapshot: header, rings, pages and classes, with hashes, origin and checks of hostile input.
#include "kv/snapshot.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/text.h"

namespace dsv4::kv {
namespace {

static_assert(std::endian::native == std::endian::little, "snapshots are written in the host's byte order");

constexpr uint64_t kMagic = 0x5441545334565344;  // "DSV4STAT"
constexpr uint32_t kVersion = 3;

struct Header {
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t header_bytes = sizeof(Header);
  uint64_t geometry = 0;
  uint64_t origin = 0;
  int64_t length = 0;
  int64_t rewind_tokens = 0;
  uint64_t payload_bytes = 0;
  uint64_t payload_hash = 0;
  uint64_t header_hash = 0;

  uint64_t Hash() const { return XXH3_64bits(this, offsetof(Header, header_hash)); }
};
static_assert(sizeof(Header) == 72);

// Calls visit_ring(layer, kind, begin) and visit_pages(layer, kind, num_rows) in the order of the payload.
// The ring rows are those that a sequence needs which is taken back to `ring_length`.
template <typename VisitRing, typename VisitPages>
Status ForEachPart(const CacheLayout& layout, int64_t length, int64_t ring_length, VisitRing visit_ring,
                   VisitPages visit_pages) {
  for (int layer = 0; layer < static_cast<int>(layout.layers.size()); ++layer) {
    for (int i = 0; i < kNumRingKinds; ++i) {
      const auto kind = static_cast<RingKind>(i);
      if (!layout.HasRing(layer, kind)) continue;
      DSV4_RETURN_IF_ERROR(visit_ring(layer, kind, layout.FirstNeededRow(layer, kind, ring_length)));
    }
    for (int i = 0; i < kNumPageKinds; ++i) {
      const auto kind = static_cast<PageKind>(i);
      if (layout.HasPages(layer, kind))
        DSV4_RETURN_IF_ERROR(visit_pages(layer, kind, layout.NumEntryRows(layer, length)));
    }
  }
  return {};
}

// Classes of a sequence that can be taken back to `ring_length`.
uint64_t ClassBytes(const CacheLayout& layout, int64_t length, int64_t ring_length) {
  if (layout.look_back == 0) return 0;
  const int64_t begin = ClassHistory(layout.look_back, 0).FirstNeeded(ring_length);
  return static_cast<uint64_t>(length - begin) * sizeof(int32_t);
}

uint64_t PayloadBytes(const CacheLayout& layout, int64_t length, int64_t ring_length) {
  int64_t bytes = 0;
  const Status status = ForEachPart(
      layout, length, ring_length,
      [&](int layer, RingKind kind, int64_t begin) -> Status {
        bytes += (length - begin) * layout.RingRowBytes(layer, kind);
        return {};
      },
      [&](int layer, PageKind kind, int64_t num_rows) -> Status {
        bytes += num_rows * layout.PageRowBytes(layer, kind);
        return {};
      });
  DSV4_CHECK(status.ok()) << status.ToString();
  return static_cast<uint64_t>(bytes) + ClassBytes(layout, length, ring_length);
}

// Calls visit(slot, num_rows) for the contiguous pieces of ring rows [begin, end).
template <typename Visit>
Status ForEachRingPiece(int64_t begin, int64_t end, int64_t capacity, Visit visit) {
  for (int64_t position = begin; position < end;) {
    const int64_t slot = position % capacity;
    const int64_t num_rows = std::min(end - position, capacity - slot);
    DSV4_RETURN_IF_ERROR(visit(slot, num_rows));
    position += num_rows;
  }
  return {};
}

}  // namespace

int64_t SnapshotBytes(const CacheLayout& layout, int64_t length, int64_t rewind_tokens) {
  return static_cast<int64_t>(sizeof(Header) + PayloadBytes(layout, length, length - rewind_tokens));
}

int64_t Snapshot::RewindableTokens(int64_t at_most) const {
  const SequenceState& state = *state_;
  const CacheLayout& layout = state.layout();
  for (int64_t num_tokens = std::min({at_most, state.length(), layout.max_rewind_tokens}); num_tokens > 0;
       --num_tokens) {
    const int64_t length = state.length() - num_tokens;
    bool present = state.classes_.CanCut(length) && !state.Lacks(length);
    for (int layer = 0; layer < static_cast<int>(layout.layers.size()); ++layer) {
      for (int i = 0; i < kNumRingKinds; ++i) {
        const auto kind = static_cast<RingKind>(i);
        if (!layout.HasRing(layer, kind)) continue;
        const auto& ring = state.layers_[static_cast<size_t>(layer)].rings[static_cast<size_t>(kind)];
        present = present && layout.FirstNeededRow(layer, kind, length) >= ring.first_row;
      }
    }
    if (present) return num_tokens;
  }
  return 0;
}

Result<std::vector<std::byte>> Snapshot::Serialize(uint64_t origin, int64_t max_rewind_tokens) const {
  if (state_->number() != 0) {
    return Error(
        Unimplemented("snapshot: other processes have the rest of this state; it cannot travel as bytes"));
  }
  const SequenceState& state = *state_;
  if (!state.whole()) {
    return Error(
        FailedPrecondition(fmt::format("snapshot: at {} of a prompt that is read to {} at least, only "
                                       "its own tokens can follow; it cannot travel",
                                       Counted(state.length(), "token"), state.whole_from())));
  }
  const CacheLayout& layout = state.layout();
  Header header;
  header.geometry = layout.GeometryFingerprint();
  header.origin = origin;
  header.length = state.length();
  header.rewind_tokens = RewindableTokens(max_rewind_tokens);
  const int64_t ring_length = header.length - header.rewind_tokens;
  header.payload_bytes = PayloadBytes(layout, header.length, ring_length);

  std::vector<std::byte> bytes(sizeof(Header) + header.payload_bytes);
  std::byte* cursor = bytes.data() + sizeof(Header);
  const auto copy_out = [&](const std::byte* source, int64_t num_bytes) -> Status {
    DSV4_RETURN_IF_ERROR(
        state.memory_->CopyToHost(cursor, source, static_cast<size_t>(num_bytes), state.stream_));
    cursor += num_bytes;
    return {};
  };
  const Status status = ForEachPart(
      layout, state.length(), ring_length,
      [&](int layer, RingKind kind, int64_t begin) -> Status {
        const auto& ring = state.layers_[static_cast<size_t>(layer)].rings[static_cast<size_t>(kind)];
        const auto* data = static_cast<const std::byte*>(state.rings_.data()) + ring.offset_bytes;
        const int64_t row_bytes = layout.RingRowBytes(layer, kind);
        return ForEachRingPiece(begin, state.length(), layout.RingCapacity(layer, kind),
                                [&](int64_t slot, int64_t num_rows) {
                                  return copy_out(data + slot * row_bytes, num_rows * row_bytes);
                                });
      },
      [&](int layer, PageKind kind, int64_t num_rows) -> Status {
        const PagedStore& store = state.layers_[static_cast<size_t>(layer)].pages[static_cast<size_t>(kind)];
        std::vector<RowRun> runs;
        store.AppendRuns(0, num_rows, 0, &runs);
        for (const RowRun& run : runs) {
          DSV4_RETURN_IF_ERROR(copy_out(static_cast<const std::byte*>(run.destination),
                                        run.num_rows * layout.PageRowBytes(layer, kind)));
        }
        return {};
      });
  DSV4_TRY(status);
  const std::span<const std::byte> classes = std::as_bytes(state.classes_.From(ring_length));
  std::copy(classes.begin(), classes.end(), cursor);
  header.payload_hash = XXH3_64bits(bytes.data() + sizeof(Header), header.payload_bytes);
  header.header_hash = header.Hash();
  std::memcpy(bytes.data(), &header, sizeof(Header));
  return bytes;
}

namespace {

Result<Header> ReadHeader(std::span<const std::byte> bytes, uint64_t origin, const CacheLayout& layout) {
  Header header;
  if (bytes.size() < sizeof(Header)) {
    return Error(DataLoss(fmt::format("sequence snapshot: got {}, want a header of {}",
                                      Counted(bytes.size(), "byte"), sizeof(Header))));
  }
  std::memcpy(&header, bytes.data(), sizeof(Header));
  if (header.magic != kMagic) {
    return Error(
        DataLoss(fmt::format("sequence snapshot, magic: got {:016x}, want {:016x}", header.magic, kMagic)));
  }
  if (header.version != kVersion || header.header_bytes != sizeof(Header)) {
    return Error(Unimplemented(fmt::format("sequence snapshot, version: got {} (header of {}), want {} ({})",
                                           header.version, Counted(header.header_bytes, "byte"), kVersion,
                                           sizeof(Header))));
  }
  if (header.header_hash != header.Hash()) {
    return Error(DataLoss(fmt::format("sequence snapshot, header hash: got {:016x}, want {:016x}",
                                      header.header_hash, header.Hash())));
  }
  if (header.geometry != layout.GeometryFingerprint()) {
    return Error(InvalidArgument(
        fmt::format("sequence snapshot, geometry: got {:016x}, want {:016x}; it was made by a "
                    "model of another shape",
                    header.geometry, layout.GeometryFingerprint())));
  }
  if (header.origin != origin) {
    return Error(InvalidArgument(
        fmt::format("sequence snapshot, origin: got {:016x}, want {:016x}; it was made with other "
                    "weights, numerics or another program",
                    header.origin, origin)));
  }
  if (header.length < 0 || header.length > layout.max_positions) {
    return Error(OutOfRange(fmt::format("sequence snapshot, length: got {}, want 0 to max_positions {}",
                                        header.length, layout.max_positions)));
  }
  if (header.rewind_tokens < 0 || header.rewind_tokens > std::min(header.length, layout.max_rewind_tokens)) {
    return Error(
        OutOfRange(fmt::format("sequence snapshot, tokens that can be taken back: got {} of {}, want 0 to "
                               "max_rewind_tokens {}",
                               header.rewind_tokens, header.length, layout.max_rewind_tokens)));
  }
  const uint64_t want_bytes = PayloadBytes(layout, header.length, header.length - header.rewind_tokens);
  const uint64_t got_bytes = bytes.size() - sizeof(Header);
  if (header.payload_bytes != want_bytes || got_bytes != want_bytes) {
    return Error(DataLoss(fmt::format("sequence snapshot, payload: got {} ({} in the header), want {} for {}",
                                      Counted(got_bytes, "byte"), header.payload_bytes, want_bytes,
                                      Counted(header.length, "token"))));
  }
  const uint64_t hash = XXH3_64bits(bytes.data() + sizeof(Header), want_bytes);
  if (hash != header.payload_hash) {
    return Error(DataLoss(fmt::format("sequence snapshot, payload hash: got {:016x}, want {:016x}", hash,
                                      header.payload_hash)));
  }
  return header;
}

}  // namespace

Result<Snapshot> Snapshot::Deserialize(std::span<const std::byte> bytes, uint64_t origin,
                                       std::shared_ptr<const CacheLayout> layout_owner, Memory& memory,
                                       Stream stream) {
  const CacheLayout& layout = *layout_owner;
  DSV4_TRY(Validate(layout));
  DSV4_ASSIGN_OR_RETURN(const Header header, ReadHeader(bytes, origin, layout));
  DSV4_ASSIGN_OR_RETURN(SequenceState state, SequenceState::Create(std::move(layout_owner), memory, stream));
  const int64_t length = header.length;
  const std::byte* cursor = bytes.data() + sizeof(Header);
  const auto copy_in = [&](std::byte* destination, int64_t num_bytes) -> Status {
    DSV4_RETURN_IF_ERROR(memory.CopyFromHost(destination, cursor, static_cast<size_t>(num_bytes), stream));
    cursor += num_bytes;
    return {};
  };
  const Status status = ForEachPart(
      layout, length, length - header.rewind_tokens,
      [&](int layer, RingKind kind, int64_t begin) -> Status {
        auto& ring = state.layers_[static_cast<size_t>(layer)].rings[static_cast<size_t>(kind)];
        ring.first_row = begin;
        auto* data = static_cast<std::byte*>(state.rings_.data()) + ring.offset_bytes;
        const int64_t row_bytes = layout.RingRowBytes(layer, kind);
        return ForEachRingPiece(begin, length, layout.RingCapacity(layer, kind),
                                [&](int64_t slot, int64_t num_rows) {
                                  return copy_in(data + slot * row_bytes, num_rows * row_bytes);
                                });
      },
      [&](int layer, PageKind kind, int64_t num_rows) -> Status {
        PagedStore& store = state.layers_[static_cast<size_t>(layer)].pages[static_cast<size_t>(kind)];
        DSV4_RETURN_IF_ERROR(store.Reserve(memory, stream, 0, num_rows));
        std::vector<RowRun> runs;
        store.AppendRuns(0, num_rows, 0, &runs);
        for (const RowRun& run : runs) {
          DSV4_RETURN_IF_ERROR(copy_in(static_cast<std::byte*>(run.destination),
                                       run.num_rows * layout.PageRowBytes(layer, kind)));
        }
        return {};
      });
  DSV4_TRY(status);
  std::vector<int32_t> classes(ClassBytes(layout, length, length - header.rewind_tokens) / sizeof(int32_t));
  if (!classes.empty()) std::memcpy(classes.data(), cursor, classes.size() * sizeof(int32_t));
  state.classes_.Restore(length, classes);
  state.length_ = length;
  if (length > 0) state.lineage_.Extend(length);
  return Snapshot(std::make_shared<const SequenceState>(std::move(state)));
}

}  // namespace dsv4::kv
