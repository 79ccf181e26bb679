// A group of ranks: they meet, agree on what they run, hear of every step from rank 0, and end together.
#include "model/runtime/model_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "comm/collectives.h"
#include "model/runtime/origin.h"
#include "model/runtime/step_message.h"

namespace dsv4::model {
namespace {

// For which a process that was killed may still be there: its memory on a device goes first.
constexpr std::chrono::seconds kProcessEnds(3);

// Numbers that a layer keeps of a sequence, as ranks tell each other.
constexpr size_t kNumbersOfLayer = 6;

std::array<int32_t, kNumbersOfLayer> NumbersOf(const kv::LayerCacheLayout& layer) {
  const auto number = [](auto value) { return static_cast<int32_t>(value); };  // Below kv::Validate's bounds.
  return {number(layer.ratio),         number(layer.overlap),     number(layer.width),
          number(layer.indexer_width), number(layer.draft_width), number(layer.block_draft)};
}

kv::LayerCacheLayout LayerOf(std::span<const int32_t, kNumbersOfLayer> numbers) {
  return {.ratio = numbers[0],
          .overlap = numbers[1] != 0,
          .width = numbers[2],
          .indexer_width = numbers[3],
          .draft_width = numbers[4],
          .block_draft = numbers[5] != 0};
}

// InvalidArgument unless every byte of the weights is alike on all ranks.
Status AgreeOnWeights(comm::Communicator& group, WeightFiles& files) {
  // The very same files on one machine: as they were opened, so they are.
  const std::array<uint64_t, 2> place = {files.place().has_value(), files.place().value_or(0)};
  DSV4_ASSIGN_OR_RETURN_STATUS(const auto places, comm::GatherValues(group, place));
  if (place[0] != 0 && std::ranges::count(places, places[0]) == group.size()) return {};
  LogInfo("ranks: their checkpoints are different files, so every byte is read and compared");
  const Result<uint64_t> mine = files.Wait(io::ContentDigest::kForever);
  DSV4_RETURN_IF_ERROR(group.Barrier(comm::Wait::kForever));
  DSV4_RETURN_IF_ERROR(comm::Agree(group, mine ? Status() : mine.error()));
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<uint64_t> all, comm::GatherValues(group, *mine));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return InvalidArgument(fmt::format(
        "rank {} has other weights than rank 0: the bytes of their checkpoints differ, want copies of one",
        rank));
  }
  return {};
}

// Stages differ in their layers alone, and only they know of their drafters.
Result<std::vector<kv::CacheLayout>> StageLayouts(comm::Communicator& group, const kv::CacheLayout& own,
                                                  size_t num_shards) {
  std::vector<int32_t> mine;
  for (const kv::LayerCacheLayout& layer : own.layers) {
    const auto numbers = NumbersOf(layer);
    mine.insert(mine.end(), numbers.begin(), numbers.end());
  }
  DSV4_ASSIGN_OR_RETURN(const std::vector<std::vector<int32_t>> all, comm::GatherLists(group, mine));
  std::vector<kv::CacheLayout> stages;
  for (size_t rank = 0; rank < all.size(); rank += num_shards) {
    kv::CacheLayout layout = own;
    layout.shard.index = 0;
    layout.layers.clear();
    for (size_t i = 0; i + kNumbersOfLayer <= all[rank].size(); i += kNumbersOfLayer)
      layout.layers.push_back(LayerOf(std::span(all[rank]).subspan(i).first<kNumbersOfLayer>()));
    stages.push_back(std::move(layout));
  }
  return stages;
}

}  // namespace

Status ModelGroup::Enter(const ModelOptions& options, const RankPlace& place, const kv::CacheLayout& layout,
                         uint64_t recipe, WeightFiles& files) {
  comm::Communicator& group = *options.group;
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<uint64_t> all, comm::GatherValues(group, recipe));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return InvalidArgument(
        fmt::format("rank {} runs another model, or with other options, than rank 0", rank));
  }
  DSV4_RETURN_IF_ERROR(AgreeOnWeights(group, files));
  DSV4_ASSIGN_OR_RETURN_STATUS(
      stage_layouts_, StageLayouts(group, layout, static_cast<size_t>(options.placement.num_shards)));
  if (options.placement.num_shards > 1) {
    DSV4_ASSIGN_OR_RETURN_STATUS(shards_, group.Split(place.stage()));
  }
  if (options.make_device_group && shards_ != nullptr) {
    DSV4_ASSIGN_OR_RETURN_STATUS(device_shards_, options.make_device_group(*shards_, DeviceGroupOf::kShards));
  }
  if (options.make_device_group && options.placement.num_stages > 1) {
    DSV4_ASSIGN_OR_RETURN_STATUS(device_ranks_, options.make_device_group(group, DeviceGroupOf::kStages));
  }
  if (group.rank() == 0) journal_ = std::make_shared<kv::StateJournal>(layout.num_places);
  ranks_ = options.group;
  return {};
}

Status ModelGroup::Agree(const Status& status) const {
  return entered() ? comm::Agree(*ranks_, status) : status;
}

Status ModelGroup::CheckDevice() const {
  if (device_shards_ != nullptr) DSV4_RETURN_IF_ERROR(device_shards_->Check());
  return device_ranks_ == nullptr ? Status() : device_ranks_->Check();
}

Status ModelGroup::EndOnDevice(ops::OpContext& context, const Buffer& any) const {
  if (!meets_on_device()) return {};
  // Nothing that others wait for stays queued here.
  float number = 0;
  DSV4_RETURN_IF_ERROR(context.memory().CopyToHost(&number, any.data(), sizeof(number), context.stream()));
  return CheckDevice();
}

Status ModelGroup::End(const Status& why) const {
  if (!entered()) return why;
  // A device fails where another rank ended a moment ago, which is then what the group is to hear.
  const auto end = std::chrono::steady_clock::now() + kProcessEnds;
  while (meets_on_device() && ranks_->Check().ok() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ranks_->Fail(why);  // The others wait for what this rank will not give.
  return ranks_->Check();
}

Status ModelGroup::Send(const StepMessage& message) const {
  DSV4_CHECK(!dismissed_) << "the other ranks do not follow";
  std::vector<std::byte> bytes = Encode(message);
  return comm::BroadcastBytes(*ranks_, bytes, 0);
}

Status ModelGroup::Dismiss() {
  DSV4_CHECK(leads()) << "rank 0 of a group dismisses the others";
  if (dismissed_) return {};
  DSV4_RETURN_IF_ERROR(Send({.kind = StepKind::kLeave, .events = {}, .chunks = {}}));
  dismissed_ = true;
  return ranks_->Barrier();
}

}  // namespace dsv4::model
