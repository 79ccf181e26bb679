// Checks, sizes and fingerprint of a cache layout, and look-ups of its rings and pages by layer.
#include "kv/cache_layout.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "formats/cache_rows.h"

namespace dsv4::kv {
namespace {

constexpr int64_t kMaxDim = int64_t{1} << 20;
constexpr int64_t kRingAlignment = 256;
constexpr int64_t kMaxTokens = int64_t{1} << 31;

Status CheckRange(std::string_view what, int64_t got, int64_t low, int64_t high) {
  if (got >= low && got <= high) return {};
  return InvalidArgument(fmt::format("cache layout, {}: got {}, want {} to {}", what, got, low, high));
}

const LayerCacheLayout& At(const CacheLayout& layout, int layer) {
  return layout.layers[static_cast<size_t>(layer)];
}

bool IsDraft(RingKind kind) { return kind == RingKind::kDraftStreams || kind == RingKind::kDraftTokens; }

bool IsIndexer(RingKind kind) { return kind == RingKind::kIndexerValues || kind == RingKind::kIndexerScores; }

}  // namespace

std::string_view RingKindName(RingKind kind) {
  switch (kind) {
    case RingKind::kWindow:
      return "window";
    case RingKind::kCompressorValues:
      return "compressor values";
    case RingKind::kCompressorScores:
      return "compressor scores";
    case RingKind::kIndexerValues:
      return "indexer values";
    case RingKind::kIndexerScores:
      return "indexer scores";
    case RingKind::kDraftStreams:
      return "draft streams";
    case RingKind::kDraftTokens:
      return "draft tokens";
  }
  return "unknown";
}

std::string_view PageKindName(PageKind kind) {
  return kind == PageKind::kEntries ? "entries" : "indexer keys";
}

uint64_t CacheLayout::GeometryFingerprint() const {
  std::vector<int64_t> numbers = {window_size, static_cast<int64_t>(layers.size()), shard.index, shard.count};
  for (const CacheFormat& format : {window_format, entry_format, key_format}) {
    numbers.insert(numbers.end(),
                   {static_cast<int64_t>(format.dtype), static_cast<int64_t>(format.code),
                    static_cast<int64_t>(format.scale), format.num_coded, format.group, format.alignment});
  }
  for (const LayerCacheLayout& layer : layers) {
    numbers.insert(numbers.end(), {layer.ratio, layer.overlap ? 1 : 0, layer.width, layer.indexer_width});
    if (layer.draft_width > 0) numbers.push_back(layer.draft_width);
    if (layer.block_draft) numbers.push_back(-1);
    if (!layer.pools) numbers.push_back(-2);
    if (!layer.pools_keys) numbers.push_back(-3);
  }
  if (look_back > 0) numbers.push_back(-1 - look_back);
  return XXH3_64bits(numbers.data(), numbers.size() * sizeof(int64_t));
}

bool CacheLayout::HasRing(int layer, RingKind kind) const {
  if (kind == RingKind::kWindow) return true;
  if (IsDraft(kind)) {
    const LayerCacheLayout& l = At(*this, layer);
    return l.draft_width > 0 && !(l.block_draft && kind == RingKind::kDraftTokens);
  }
  const LayerCacheLayout& l = At(*this, layer);
  return IsIndexer(kind) ? l.indexer_width > 0 && l.pools_keys : l.ratio > 0 && l.pools;
}

int64_t CacheLayout::RingWidth(int layer, RingKind kind) const {
  const LayerCacheLayout& l = At(*this, layer);
  if (kind == RingKind::kWindow) return l.width;
  if (IsDraft(kind)) return kind == RingKind::kDraftStreams ? l.draft_width : 1;
  return l.channels() * (IsIndexer(kind) ? l.indexer_width : l.width);
}

CacheFormat CacheLayout::RingFormat(RingKind kind) const {
  switch (kind) {
    case RingKind::kWindow:
      return window_format;
    case RingKind::kDraftStreams:
      return window_format.dtype;
    case RingKind::kDraftTokens:
      return DType::kI32;
    default:
      return DType::kF32;
  }
}

int64_t CacheLayout::MostDraftSlots(int64_t length) const {
  const int layer = DraftLayer();
  const bool wants_next_token = layer < 0 || !layers[static_cast<size_t>(layer)].block_draft;
  return std::max<int64_t>(0, length - (wants_next_token ? 1 : 0));
}

int CacheLayout::DraftLayer() const {
  const auto draft =
      std::ranges::find_if(layers, [](const LayerCacheLayout& layer) { return layer.drafts(); });
  return draft == layers.end() ? -1 : static_cast<int>(draft - layers.begin());
}

int64_t CacheLayout::RingRowBytes(int layer, RingKind kind) const {
  return RingFormat(kind).RowBytes(RingWidth(layer, kind));
}

int64_t CacheLayout::RingCapacity(int layer, RingKind kind) const {
  const LayerCacheLayout& l = At(*this, layer);
  if (kind == RingKind::kWindow) {
    return l.drafts() ? DraftWindowRows() : window_size - 1 + std::max<int64_t>(1, max_rewind_tokens);
  }
  if (IsDraft(kind)) return kDraftBlock + 1 + max_rewind_tokens;
  return std::max<int64_t>(1, l.ratio * l.channels() - 1 + max_rewind_tokens);
}

int64_t CacheLayout::RingBytes(int layer, RingKind kind) const {
  const int64_t bytes = RingCapacity(layer, kind) * RingRowBytes(layer, kind);
  return (bytes + kRingAlignment - 1) / kRingAlignment * kRingAlignment;
}

int64_t CacheLayout::FirstNeededRow(int layer, RingKind kind, int64_t length) const {
  const LayerCacheLayout& l = At(*this, layer);
  if (kind == RingKind::kWindow) {
    // A draft's first query is that of the last position; a block sees a whole window in front of it.
    return std::max<int64_t>(0, length - (window_size - 1) - (l.drafts() ? 1 : 0));
  }
  if (IsDraft(kind)) return DraftSlots(length);
  // The unfinished block, and with overlap the one before it.
  return std::max<int64_t>(0, length / l.ratio - (l.channels() - 1)) * l.ratio;
}

bool CacheLayout::HasPages(int layer, PageKind kind) const {
  return kind == PageKind::kEntries ? At(*this, layer).ratio > 0 : At(*this, layer).indexer_width > 0;
}

int64_t CacheLayout::PageWidth(int layer, PageKind kind) const {
  return kind == PageKind::kEntries ? At(*this, layer).width : At(*this, layer).indexer_width;
}

int64_t CacheLayout::PageRowBytes(int layer, PageKind kind) const {
  return PageFormat(kind).RowBytes(PageWidth(layer, kind));
}

int64_t CacheLayout::NumEntries(int layer, int64_t length) const {
  const int64_t ratio = At(*this, layer).ratio;
  return ratio == 0 ? 0 : length / ratio;
}

Status Validate(const CacheLayout& layout) {
  DSV4_RETURN_IF_ERROR(CheckRange("layers", static_cast<int64_t>(layout.layers.size()), 1, kMaxDim));
  DSV4_RETURN_IF_ERROR(CheckRange("window_size", layout.window_size, 1, kMaxDim));
  DSV4_RETURN_IF_ERROR(CheckRange("max_positions", layout.max_positions, 1, kMaxTokens));
  DSV4_RETURN_IF_ERROR(CheckRange("max_chunk_tokens", layout.max_chunk_tokens, 1, kMaxDim));
  DSV4_RETURN_IF_ERROR(CheckRange("max_rewind_tokens", layout.max_rewind_tokens, 0, kMaxDim));
  DSV4_RETURN_IF_ERROR(CheckRange("rows_per_page", layout.rows_per_page, 1, kMaxDim));
  DSV4_RETURN_IF_ERROR(CheckRange("look_back", layout.look_back, 0, kMaxDim));
  DSV4_RETURN_IF_ERROR(CheckRange("shards", layout.shard.count, 1, kMaxDim));
  DSV4_RETURN_IF_ERROR(CheckRange("shard", layout.shard.index, 0, layout.shard.count - 1));
  for (size_t i = 0; i < layout.layers.size(); ++i) {
    const LayerCacheLayout& layer = layout.layers[i];
    const auto check = [&]() -> Status {
      DSV4_RETURN_IF_ERROR(CheckRange("ratio", layer.ratio, 0, kMaxDim));
      DSV4_RETURN_IF_ERROR(CheckRange("width", layer.width, 1, kMaxDim));
      DSV4_RETURN_IF_ERROR(
          CheckRange("indexer_width", layer.indexer_width, 0, layer.ratio > 0 ? kMaxDim : 0));
      DSV4_RETURN_IF_ERROR(CheckRange("draft_width", layer.draft_width, 0, layer.ratio > 0 ? 0 : kMaxDim));
      DSV4_RETURN_IF_ERROR(CheckRange("block_draft", layer.block_draft ? 1 : 0, 0, layer.ratio > 0 ? 0 : 1));
      DSV4_RETURN_IF_ERROR(Validate(layout.window_format, layer.width).WithContext("window"));
      if (layer.ratio > 0)
        DSV4_RETURN_IF_ERROR(Validate(layout.entry_format, layer.width).WithContext("entries"));
      if (layer.indexer_width > 0)
        DSV4_RETURN_IF_ERROR(Validate(layout.key_format, layer.indexer_width).WithContext("indexer keys"));
      return {};
    };
    DSV4_RETURN_IF_ERROR(check().WithContext(fmt::format("layer {}", i)));
  }
  return {};
}

namespace {

int64_t PageBytes(const CacheLayout& layout, int64_t length, bool whole) {
  int64_t bytes = 0;
  for (int layer = 0; layer < static_cast<int>(layout.layers.size()); ++layer) {
    const int64_t rows = layout.NumEntryRows(layer, length) + (whole ? 0 : layout.rows_per_page - 1);
    for (int i = 0; i < kNumPageKinds; ++i) {
      const auto kind = static_cast<PageKind>(i);
      if (layout.HasPages(layer, kind))
        bytes += rows / layout.rows_per_page * layout.rows_per_page * layout.PageRowBytes(layer, kind);
    }
  }
  return bytes;
}

}  // namespace

int64_t StateBytes(const CacheLayout& layout, int64_t length) {
  int64_t bytes = PageBytes(layout, length, /*whole=*/false);
  for (int layer = 0; layer < static_cast<int>(layout.layers.size()); ++layer) {
    for (int i = 0; i < kNumRingKinds; ++i) {
      const auto kind = static_cast<RingKind>(i);
      if (layout.HasRing(layer, kind)) bytes += layout.RingBytes(layer, kind);
    }
  }
  return bytes;
}

int64_t WholePageBytes(const CacheLayout& layout, int64_t length) {
  return PageBytes(layout, length, /*whole=*/true);
}

double BytesPerToken(const CacheLayout& layout) {
  double bytes = 0;
  for (const CachePart& part : CacheParts(layout)) bytes += part.bytes_per_token;
  return bytes;
}

std::vector<CachePart> CacheParts(const CacheLayout& layout) {
  std::vector<CachePart> parts;
  const auto num_layers = static_cast<int>(layout.layers.size());
  for (int i = 0; i < kNumRingKinds; ++i) {
    const auto kind = static_cast<RingKind>(i);
    CachePart part{.name = RingKindName(kind), .format = layout.RingFormat(kind)};
    for (int layer = 0; layer < num_layers; ++layer) {
      if (layout.HasRing(layer, kind)) part.fixed_bytes += layout.RingBytes(layer, kind);
    }
    if (part.fixed_bytes > 0) parts.push_back(part);
  }
  for (int i = 0; i < kNumPageKinds; ++i) {
    const auto kind = static_cast<PageKind>(i);
    CachePart part{.name = PageKindName(kind), .format = layout.PageFormat(kind)};
    for (int layer = 0; layer < num_layers; ++layer) {
      if (!layout.HasPages(layer, kind)) continue;
      part.bytes_per_token += static_cast<double>(layout.PageRowBytes(layer, kind)) /
                              static_cast<double>(At(layout, layer).ratio * layout.shard.count);
    }
    if (part.bytes_per_token > 0) parts.push_back(part);
  }
  return parts;
}

}  // namespace dsv4::kv
