// The tail of a pass. Layers behind the last one that makes entries leave nothing of a position but its
// window row and its output. So they run on the end of a long prompt alone: on the positions that a wanted
// row depends on. Bits are the same there (v4.1 forward, section 7).
//
// A wanted row depends, layer by layer, on the window in front of it. Rows in front of the cut are absent in
// these layers' windows. What is made from them is wrong. It reaches one window further in each layer, which
// is not as far as a wanted row.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "model/graph/step.h"
#include "model/graph/trunk.h"

namespace dsv4::model {

// Ranks agree on it: each computes it from the states' lengths. The stage that has the last maker of entries
// is the last one (MayBeginStage), so no other changes its rows.
struct PassTail {
  size_t first_layer = 0;             // In the graph's layers; their number, where these are all in front.
  std::vector<Range> rows;            // The pass's rows that go on, by sequence that is here; may be none.
  std::vector<int64_t> chunk_rows;    // Count of each chunk, here or not.
  std::vector<int64_t> whole_from;    // SequenceState::LeaveOut of each chunk; 0: nothing is left out.
  std::vector<int64_t> shard_tokens;  // As StepContext.
  int64_t num_tokens = 0;             // On all shards.
  PassPlan plan;                      // Plan of the rows here.
};

// Rows at a sequence's end that count behind the last layer, beside those of logits: what the next tokens, a
// rewind and a drafter read.
int64_t MostKeptRows(const kv::CacheLayout& layout);
// PassChunk::exact_from of an append of `count` tokens, of whose last `num_wanted` logits are wanted.
int64_t ExactFrom(const kv::SequenceState& state, int64_t count, int64_t num_wanted, int64_t num_following);
// Rows at a sequence's end with which all layers run, so that its state is whole; 0: all of them.
int64_t TailRows(const Graph& graph, const kv::CacheLayout& layout);

// The tail of a pass, or nothing where all of it goes on: all rows are wanted, or the last layer makes
// entries. A drafter is another cause, over several stages or where it reads layers in front.
std::optional<PassTail> CutTail(const Graph& graph, std::span<const PassChunk> chunks, const PassPlan& plan);

// Uploads the tail's numbers, and leaves in `state` its rows alone, of which `behind` says whose streams are
// here. The sequences' appends are then of these rows.
Status EnterTail(const LayerStep& step, const StepContext& behind, PassTail& tail, TrunkState& state);

}  // namespace dsv4::model
