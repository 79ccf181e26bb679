// LayerPlan: the one description of a layer: what it does, and whose rows of a sequence's state it reads and
// writes. The room of an architecture (model/arch) makes the plans from config.json, and they are checked
// once. The graph, the cache's layout, placement, loader, converter, diagnosis and reports ask the plan and
// nothing else. So the graph runs any list of plans: a stage's layers, or blocks that follow the trunk.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/rows.h"

namespace dsv4::model {

// How a layer's tokens find their experts.
enum class RouterKind : uint8_t {
  kScores,   // By the router's scores and bias.
  kTokenIds  // By a table of token ids; scores give the weights.
};

// How tokens become an entry.
enum class Pooling : uint8_t {
  kBiased,  // By the softmax of a gate with a bias for the index in the group.
  kGated,   // By that of a gate alone.
  kSingle   // An entry is of one token, and there is no gate.
};

// Source of the rows of indexer keys.
enum class KeySource : uint8_t {
  kCompressor,  // From a compressor of their own.
  kLatents      // From the pooled rows that become entries, before these are rotated.
};

// The rotary table of a layer (ModelConfig).
enum class RopeKind : uint8_t { kPlain, kCompressed };

struct LayerPlan {
  int number = -1;  // In the model, as errors, observers and checkpoints count.
  // The owners of rows, as layers of a sequence's state (kv/cache_layout.h). In the plans of a whole model
  // they are numbers of layers; in those of a stage they count from its first layer. A layer that is its own
  // owner makes the rows; -1 reads none.
  int window = 0;    // Its own.
  int entries = -1;  // Compressed entries that its queries read.
  int keys = -1;     // Indexer keys that it scores.
  int selection =
      -1;  // The layer whose choice among the entries it uses; without one it reads all visible entries.
  // The layer whose candidate blocks bound its choice; its own: it makes them, and is not bound by them.
  int candidates = -1;
  int64_t ratio = 0;  // Tokens per entry; 0: it sees none.
  int64_t overlap =
      1;  // Groups of `ratio` tokens that meet in an entry; also the compressor's width in units of the entry's.
  Pooling pooling = Pooling::kBiased;
  KeySource key_source = KeySource::kCompressor;
  int engram = -1;  // Its index among the layers with an Engram; -1: it has none.
  RouterKind router = RouterKind::kScores;
  RopeKind rope = RopeKind::kPlain;
  // Rows of a block of a drafter. Each sequence's rows are a block: all see one another and the window in
  // front of the first.
  int64_t block_rows = 0;
  // Routed experts of a drafter's layer and how many a token takes, where they are not the model's; 0: they
  // are.
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;

  bool sees_entries() const { return entries >= 0; }
  bool makes_entries() const { return sees_entries() && entries == window; }
  bool makes_keys() const { return keys >= 0 && keys == window; }
  bool selects() const { return selection >= 0 && selection == window; }
  bool reads_selection() const { return selection >= 0; }
  bool makes_candidates() const { return candidates >= 0 && candidates == window; }
  bool bound_by_candidates() const { return candidates >= 0 && candidates != window; }
  bool has_engram() const { return engram >= 0; }
  // Entries that a query at this position may see.
  int64_t VisibleEntries(int64_t position) const { return sees_entries() ? (position + 1) / ratio : 0; }
  // Steps before and after the layers have no plan, and this number instead.
  bool is_layer() const { return number >= 0; }

  friend bool operator==(const LayerPlan& a, const LayerPlan& b) = default;
};

// The name of its attention in reports: "swa" (window alone), "csa" (chosen entries), "hca" (all entries).
std::string_view AttentionName(const LayerPlan& plan);

// Every field as text: two plans have the same text when they are equal.
std::string Facts(const LayerPlan& plan);

// The plan of a block that follows `state_layer` layers of a state: a window of its own, and experts by
// score.
LayerPlan BlockPlan(int number, int state_layer);

// Whether the plans of a whole model fit together. Numbers and windows count up. Owners are makers and no
// later layer, and ratios of owner and reader agree. A layer that scores has keys. A selection is that of the
// last layer to choose, and candidates are of layers that choose. `what` names the document in errors.
Status CheckPlans(std::span<const LayerPlan> plans, std::string_view what);

// The same layers as a stage that begins with `layers.begin` counts them. No layer reads rows of a layer
// outside.
std::vector<LayerPlan> PlansOfStage(std::span<const LayerPlan> plans, const Range& layers);

// Whether a stage may begin with layer `begin`: no layer from there on reads rows of one before.
bool MayBeginStage(std::span<const LayerPlan> plans, int64_t begin);
int64_t MostStages(std::span<const LayerPlan> plans);

}  // namespace dsv4::model
