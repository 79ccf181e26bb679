// Placement: which rank of a group has which part of a model. docs/scaling-design.md says why and what it
// costs.
//
// Ranks form a grid: `num_stages` stages (pipeline parallel), each with the same number of ranks (the
// shards). A stage has consecutive layers; a shard has a part of every layer of its stage. Rank r is shard r
// mod num_shards of stage r / num_shards. The first stage also has the embedding and the head.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/rows.h"

namespace dsv4::model {

// How the shards of a stage divide the routed experts. Attention and the shared expert they divide by
// columns, or not at all where they divide the sequences.
enum class ExpertPlacement : uint8_t {
  kById,       // Expert parallel: each has whole experts.
  kByColumns,  // Tensor parallel: each has a part of every expert.
};

struct Placement {
  int num_stages = 1;
  int num_shards = 1;  // Shards of every stage.
  ExpertPlacement experts = ExpertPlacement::kById;
  // Context parallel: whether each shard keeps a part of the compressed entries and indexer keys of a
  // sequence, or all of them.
  bool divide_entries = false;
  // Data-parallel attention: whether each sequence is on one shard, which does all of its layers but the
  // routed experts and the head. Else every shard has a part of every sequence's work.
  bool divide_sequences = false;

  // In how many parts a layer is cut, its routed experts apart.
  int layer_parts() const { return divide_sequences ? 1 : num_shards; }
  int num_ranks() const { return num_stages * num_shards; }
  friend bool operator==(const Placement& a, const Placement& b) = default;
};

// Words such as "pipeline", "expert", "expert,sequences", "tensor", "tensor,entries" or "pipeline=2,expert"
// name stages and the division inside a stage. Both divide the entries too if "entries" follows, and "expert"
// the sequences if that word does. `pipeline` alone makes every rank a stage; "auto" is "expert".
// InvalidArgument for other words, or for ranks that do not fill the stages.
Result<Placement> ParsePlacement(std::string_view text, int num_ranks);
// The same in words that ParsePlacement understands.
std::string ToString(const Placement& placement);

// Part `part` of `num_parts` of [0, count), cut at multiples of `unit`: as even as that allows, the first
// ones larger. There may be empty parts.
Range PartOf(int64_t count, int64_t unit, int part, int num_parts);

// The same of parts that are as large as `counts` say, one behind the other.
Range PartOf(std::span<const int64_t> counts, int part);

// Ranges of layers with these costs, the consecutive ranges, one a stage and none empty, whose dearest costs
// least; the first stage has `first_extra` besides. At least as many layers as stages.
std::vector<Range> BalanceLayers(std::span<const int64_t> costs, int64_t first_extra, int num_stages);

// One rank's stage and shard.
struct RankPlace {
  Placement placement;
  int rank = 0;
  Range layers;                     // Layers of the model.
  std::vector<Range> stage_layers;  // The same of every stage.

  int stage() const { return rank / placement.num_shards; }
  int shard() const { return rank % placement.num_shards; }
  int num_shards() const { return placement.num_shards; }
  // Index of the part of a layer, its routed experts apart.
  int layer_part() const { return placement.divide_sequences ? 0 : shard(); }
  // Entries of a sequence that this rank keeps.
  EntryShard entries() const {
    return placement.divide_entries ? EntryShard{shard(), num_shards()} : EntryShard{};
  }
  bool first_stage() const { return stage() == 0; }
  bool last_stage() const { return stage() == placement.num_stages - 1; }
};

}  // namespace dsv4::model
