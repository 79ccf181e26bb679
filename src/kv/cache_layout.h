// CacheLayout: which rows a sequence keeps, in plain numbers. The model fills it from its configuration; kv
// knows nothing else of the model.
//
// Per layer a sequence owns up to seven rings and two paged stores:
//
// | store                              | layers          | row of                   | width           | format        |
// | window ring                        | all             | one position             | width           | window_format |
// | compressor values, scores (rings)  | ratio > 0, pools | one position, raw (a, b) | channels * width| F32           |
// | indexer values, scores (rings)     | indexer, pools_keys | one position, raw (a, b) | channels * indexer_width | F32  |
// | entries (pages)                    | ratio > 0       | `ratio` positions        | width           | entry_format  |
// | indexer keys (pages)               | with an indexer | `ratio` positions        | indexer_width   | key_format    |
// | draft streams (ring)               | draft blocks    | one position             | draft_width     | window's, unpacked |
// | draft tokens (ring)                | draft blocks    | one position             | 1               | I32           |
//
// Values that the model rounds are stored as the codes they were rounded to (tensor/cache_format.h). Raw rows
// are not rounded, and stay fp32.
//
// Context parallel: several ranks may divide a sequence's entries and indexer keys (`shard`); every rank has
// all of the rings.
//
// A draft block (MTP) comes behind the layers of the model. Its window row of position p, slot p, needs the
// model's residual streams at p and the token at p + 1. It therefore comes later than p. A sequence of
// `length` tokens has the slots below DraftSlots(length). It keeps streams and tokens of the positions from
// there on, so that the other slots can be made at any time.
//
// The stages of a drafter of blocks (DSpark) come there too. Their slots are made of the taps of their
// positions, without a token. A draft writes the rows of its block behind the sequence's end, where slots
// overwrite them.
//
// channels is 2 with `overlap` and 1 otherwise. Rings hold the row of position p at slot p mod capacity, so
// nothing ever moves, and taking tokens back is a change of length.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/rows.h"

namespace dsv4::kv {

enum class RingKind : uint8_t {
  kWindow,
  kCompressorValues,
  kCompressorScores,
  kIndexerValues,
  kIndexerScores,
  kDraftStreams,
  kDraftTokens
};
enum class PageKind : uint8_t { kEntries, kIndexerKeys };
inline constexpr int kNumRingKinds = 7;
inline constexpr int kNumPageKinds = 2;

// Slots of a draft block are made so many at a time at least.
inline constexpr int64_t kDraftBlock = 16;
// Rows that a draft may write behind a sequence's end, beside its own.
inline constexpr int64_t kMostDraftRows = 16;

std::string_view RingKindName(RingKind kind);  // "window", "compressor values", ...
std::string_view PageKindName(PageKind kind);  // "entries", "indexer keys"

struct LayerCacheLayout {
  int64_t ratio = 0;          // Positions per entry; 0: window only.
  bool overlap = false;       // An entry also pools the previous block (CSA).
  int64_t width = 0;          // Elements of a window row and of an entry.
  int64_t indexer_width = 0;  // Elements of an indexer key; 0: no indexer.
  // Whether entries and keys are pooled from raw rows of their own; else there are no rings of these.
  bool pools = true;
  bool pools_keys = true;
  int64_t draft_width =
      0;  // A drafter's first layer: elements that it reads of the model's pass (MTP: residual streams, DSpark: taps).
  bool block_draft = false;  // A stage of a drafter of blocks (DSpark).

  bool drafts() const { return draft_width > 0 || block_draft; }
  int64_t channels() const { return overlap ? 2 : 1; }
  friend bool operator==(const LayerCacheLayout& a, const LayerCacheLayout& b) = default;
};

struct CacheLayout {
  std::vector<LayerCacheLayout> layers;
  int64_t window_size = 0;  // Positions a query sees through the window, its own included.
  CacheFormat window_format;
  CacheFormat entry_format;
  CacheFormat key_format;
  int64_t max_positions = 0;      // Length limit of a sequence.
  int64_t max_chunk_tokens = 0;   // Most tokens of one append.
  int64_t max_rewind_tokens = 0;  // Tokens that can always be taken back.
  int64_t rows_per_page = 64;
  int64_t look_back = 0;  // Tokens in front of the next one whose classes are kept (class_history.h).
  EntryShard shard;       // Share of every paged store.
  int num_places = 1;     // Ranks that divide the sequences, each whole to one (StateHome).

  // Fingerprint of the geometry alone: two layouts with equal fingerprints can exchange rows. Capacities and
  // page sizes do not count.
  uint64_t GeometryFingerprint() const;

  bool HasRing(int layer, RingKind kind) const;
  int64_t RingWidth(int layer, RingKind kind) const;
  CacheFormat RingFormat(RingKind kind) const;
  int64_t RingRowBytes(int layer, RingKind kind) const;
  // The first layer that is a drafter's, or -1.
  int DraftLayer() const;
  // Rows of a drafter's window ring, whether this layout has a drafter or another stage's.
  int64_t DraftWindowRows() const {
    return window_size + std::max<int64_t>(1, max_rewind_tokens) + kMostDraftRows;
  }
  // Slots of a draft block that a sequence of so many tokens has in any case.
  static int64_t DraftSlots(int64_t length) {
    return length < 1 ? 0 : (length - 1) / kDraftBlock * kDraftBlock;
  }
  // And the most that it can have.
  int64_t MostDraftSlots(int64_t length) const;
  // The rows that the next token needs, and room to append or to take back:
  //   window                window_size - 1 + max_rewind_tokens, or a token (a longer append has its rows elsewhere meanwhile); of a
  //                         drafter's layers kMostDraftRows more
  //   draft streams, tokens kDraftBlock + 1 + max_rewind_tokens
  //   compressor, indexer   ratio * channels - 1 + max_rewind_tokens (the pool op reads a chunk from its inputs)
  int64_t RingCapacity(int layer, RingKind kind) const;
  // All slots, rounded up so that the next ring is aligned for any device's vector loads.
  int64_t RingBytes(int layer, RingKind kind) const;
  // The first position whose row a sequence of `length` tokens still needs; all from it to length - 1 are
  // needed.
  int64_t FirstNeededRow(int layer, RingKind kind, int64_t length) const;

  bool HasPages(int layer, PageKind kind) const;
  int64_t PageWidth(int layer, PageKind kind) const;
  const CacheFormat& PageFormat(PageKind kind) const {
    return kind == PageKind::kEntries ? entry_format : key_format;
  }
  int64_t PageRowBytes(int layer, PageKind kind) const;
  // Entries that `length` positions complete, and how many of them are rows here.
  int64_t NumEntries(int layer, int64_t length) const;
  int64_t NumEntryRows(int layer, int64_t length) const { return shard.NumRows(NumEntries(layer, length)); }
};

// InvalidArgument names the layer and the field; afterwards all sizes fit in int64.
Status Validate(const CacheLayout& layout);

// Bytes a sequence of `length` tokens occupies: all rings, and whole pages.
int64_t StateBytes(const CacheLayout& layout, int64_t length);
// Bytes of pages that no further token is written to: copies that go on share them.
int64_t WholePageBytes(const CacheLayout& layout, int64_t length);
// Bytes that a token adds to a long sequence, on average and without the rest of a page.
double BytesPerToken(const CacheLayout& layout);

// One kind of row of a sequence, in all layers: for reports.
struct CachePart {
  std::string_view name;  // RingKindName, PageKindName
  CacheFormat format;
  int64_t fixed_bytes = 0;     // Bytes of a sequence of any length,
  double bytes_per_token = 0;  // and by which it grows.
};
// Parts of the layout, rings first.
std::vector<CachePart> CacheParts(const CacheLayout& layout);

}  // namespace dsv4::kv
