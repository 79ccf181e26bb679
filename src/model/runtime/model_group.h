// ModelGroup: the ranks that run a model together, as one of them sees them: what they exchange through, and
// what rank 0 tells the others. Alone, it is not entered, and agrees with itself.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "kv/cache_layout.h"
#include "kv/state_journal.h"
#include "model/placement/placement.h"
#include "model/runtime/model_options.h"
#include "ops/op_context.h"

namespace dsv4::model {

struct StepMessage;
class WeightFiles;

class ModelGroup {
 public:
  // All ranks of options.group call it, when each has its part of the model, of which `layout` is the cache. InvalidArgument where their
  // recipes (GroupRecipeOf) or the bytes of their weights differ.
  Status Enter(const ModelOptions& options, const RankPlace& place, const kv::CacheLayout& layout,
               uint64_t recipe, WeightFiles& files);
  bool entered() const { return ranks_ != nullptr; }
  // Whether this is rank 0 of several.
  bool leads() const { return journal_ != nullptr; }

  // All ranks, on their hosts. Entered.
  comm::Communicator& hosts() const { return *ranks_; }
  // Ranks for tensors of the backend; null alone.
  comm::Communicator* ranks() const { return device_ranks_ != nullptr ? device_ranks_.get() : ranks_.get(); }
  // Shards of this rank's stage for tensors of the backend, and for numbers on the host; null where the stage is one rank.
  comm::Communicator* shards() const {
    return device_shards_ != nullptr ? device_shards_.get() : shards_.get();
  }
  comm::Communicator* shard_hosts() const { return shards_.get(); }
  bool shards_meet_on_device() const { return device_shards_ != nullptr; }
  // Cache of every stage, by its first shard, which has most of what shards divide.
  std::span<const kv::CacheLayout> stage_layouts() const { return stage_layouts_; }
  // Journal of all states, on rank 0; null elsewhere.
  const std::shared_ptr<kv::StateJournal>& journal() const { return journal_; }

  // `status` of all ranks: Ok where it is on all. An error is one of them.
  Status Agree(const Status& status) const;
  // The error that ended the group, or Ok.
  Status Check() const { return ranks_->Check(); }
  // Data exchanged on devices with ranks that are gone is worth nothing.
  Status CheckDevice() const;
  // After a pass whose ranks exchange in the device's order: waits for the device, and says whether the groups are whole. `any` is a part
  // of the device's memory.
  Status EndOnDevice(ops::OpContext& context, const Buffer& any) const;
  // Ends the group, which this rank cannot go on with; returns what the others then hear. `why` itself alone.
  Status End(const Status& why) const;

  // Rank 0: changes of states since the last call.
  std::vector<kv::StateEvent> TakeEvents() const { return journal_->Take(); }
  // Rank 0: tells the others what comes.
  Status Send(const StepMessage& message) const;
  // Model::Dismiss, Recall.
  Status Dismiss();
  void Recall() { dismissed_ = false; }

 private:
  bool meets_on_device() const { return device_shards_ != nullptr || device_ranks_ != nullptr; }

  std::shared_ptr<comm::Communicator> ranks_;
  std::unique_ptr<comm::Communicator> shards_;
  // Groups on devices, where there are such: of this stage, and of all ranks where there are several stages.
  std::unique_ptr<comm::Communicator> device_shards_;
  std::unique_ptr<comm::Communicator> device_ranks_;
  std::vector<kv::CacheLayout> stage_layouts_;
  std::shared_ptr<kv::StateJournal> journal_;
  bool dismissed_ = false;  // State of rank 0 where the others do not follow now.
};

}  // namespace dsv4::model
