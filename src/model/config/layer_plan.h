// LayerPlan: what a layer of the graph does, and whose rows of a sequence's state it reads and writes. It is made once from the configuration;
// the graph, the cache's layout and the placement's forecast ask it and nothing else. So the graph runs any list of plans: a stage's layers,
// or blocks that follow the trunk (a draft block attends to the window alone and routes by score).
#pragma once

#include <cstdint>
#include <vector>

#include "model/config/config.h"
#include "model/placement/placement.h"

namespace dsv4::model {

// What a layer's queries see.
enum class AttentionKind : uint8_t {
  kWindow,           // The sliding window,
  kSelectedEntries,  // and the entries that its indexer selects,
  kAllEntries,       // or all visible entries.
};

// How a layer's tokens find their experts.
enum class RouterKind : uint8_t {
  kScores,   // By the router's scores and bias.
  kTokenIds  // By a table of token ids; scores give the weights.
};

struct LayerPlan {
  int number = -1;  // In the model, as errors, observers and checkpoints count.
  AttentionKind attention = AttentionKind::kWindow;
  RouterKind router = RouterKind::kScores;
  int64_t ratio = 0;    // Tokens per entry; 0: it sees none.
  int64_t overlap = 1;  // Groups of `ratio` tokens that meet in an entry.
  // Layers of a sequence's state (kv/cache_layout.h), counted from 0 on each rank:
  int state_layer = 0;    // whose window, and raw rows of compressors, are this layer's own;
  int entries_layer = 0;  // whose entries and indexer keys its queries read.
  // Of a stage of a drafter of blocks: each sequence's rows are a block, all of which see one another and the window in front of the first.
  int64_t block_rows = 0;

  bool sees_entries() const { return attention != AttentionKind::kWindow; }
  bool has_indexer() const { return attention == AttentionKind::kSelectedEntries; }
  // Whether it makes the entries that it reads, and keeps them.
  bool owns_entries() const { return sees_entries() && entries_layer == state_layer; }
  // What lies before and after the layers has no plan, and this number in its place.
  bool is_layer() const { return number >= 0; }
};

// Of these layers of the configuration, of which the first is layer 0 of the states. Each owns what it reads.
std::vector<LayerPlan> PlanLayers(const ModelConfig& config, const Range& layers);

}  // namespace dsv4::model
