// ModelOptions: how a model is loaded, and on which ranks it runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "io/chosen_reads.h"
#include "model/checkpoint/weights.h"
#include "model/config/cache_geometry.h"
#include "model/config/numerics.h"
#include "model/placement/expert_split.h"
#include "model/placement/placement.h"

namespace dsv4::model {

// The ranks whose data a group on devices moves: a stage's shards, which all exchange at once, or stages,
// which send to each other.
enum class DeviceGroupOf : uint8_t { kShards, kStages };

struct ModelOptions {
  Numerics numerics = Numerics::kRelease;
  int64_t max_layers = 0;  // Runs only the first layers; 0: all.
  // The first release revision and transformers parity turn it off.
  bool clamp_shared_expert = true;
  int64_t max_chunk_tokens = 512;  // Most rows of one pass through the layers; longer chunks take several.
  int64_t max_rewind_tokens = 64;  // Tokens of a sequence that can always be taken back.
  // Loads the draft block (MTP) that a checkpoint may have: Draft. Sequences then keep rows for it.
  bool mtp = false;
  // Loads the DSpark drafter that a checkpoint may have (checkpoint/dspark_source.h), for Draft. With `mtp`
  // too, it is loaded only where there is no draft block: the checkpoint's own comes before a folder's
  // drafter.
  bool dspark = false;
  // Head that its drafts are projected with. A copy of the head in fewer bits is memory beside the drafter;
  // no answer changes.
  DraftHead draft_head = DraftHead::kStored;
  // A backend without Backend::packs_rows keeps them wide. The same on all ranks.
  CacheRows cache_rows = CacheRows::kPacked;
  // If routed experts are divided by id: the most bytes of a pass's terms for which every rank gathers rows
  // of all assignments. Bytes are of all ranks together. Beyond that hosts list the rows that there are. The
  // same on all ranks. 128 tokens of Flash on eight ranks, 64 of Pro.
  int64_t max_gathered_terms = int64_t{48} << 20;
  // On a device: experts that the host multiplies, or keeps for it (docs/expert-tiers.md). The split is of the experts of every layer, which
  // are on one rank; of none, all are resident. The order is by layer, as TiersOf takes it.
  ExpertSplit experts;
  std::vector<std::vector<int32_t>> expert_order;
  // Reader of experts of a model on the host that is larger than the memory it may use; null: it is not.
  // Routed experts are read from their files when they are chosen. Those of layers that choose by token are
  // asked for here before a step. All else is copied to memory. A backend that multiplies them asks for the
  // others (backend::CpuOptions::will_read).
  std::shared_ptr<io::ChosenReads> experts_from_disk;
  // Every byte of the checkpoint is hashed while the model loads, and behind it: soon Model::Origin then need not wait.
  bool hash_weights = false;
  // The backend looks at no number, so none is loaded.
  bool sizes_only = false;
  // The class of each token id, for a model with n-gram tables (tokenizer/token_classes.h); others have no use for them.
  std::vector<int32_t> token_classes;
  // Called while loading, after each layer; an error ends the load and is its result. May be empty.
  std::function<Status(const LoadProgress&)> progress;
  // The ranks that run the model together, each with its part; null: this process runs it alone.
  std::shared_ptr<comm::Communicator> group;
  Placement placement;  // Placement over as many ranks as the group has.
  // Makes a group whose data lies in the backend's memory, of ranks that have met on their hosts. It does not
  // outlive the hosts' group. All ranks call it together. Empty: the group reaches that memory itself.
  std::function<Result<std::unique_ptr<comm::Communicator>>(comm::Communicator& hosts, DeviceGroupOf of)>
      make_device_group;
};

}  // namespace dsv4::model
