// The compressed entries or indexer keys of some of a pass's sequences where shards divide them, brought
// together. It is done for many tokens: beside their work these are few bytes.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "kv/cache_layout.h"
#include "model/graph/step_context.h"

namespace dsv4::model {

struct AllEntries {
  std::vector<PagedRows> sequences;  // Pages of each sequence, in order.
  std::vector<void*> pages;          // To which `sequences` point: one a sequence, in the arena.
};

// Entries of this layer, those that this pass completes included; all shards call it.
Result<AllEntries> GatherEntries(const LayerStep& step, std::string_view name, kv::PageKind kind,
                                 std::span<const PassSequence> sequences);

}  // namespace dsv4::model
