// A model on several ranks: they meet, hear of every step from rank 0, and end together.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "comm/collectives.h"
#include "kv/random_rows.h"
#include "model/graph/step.h"
#include "model/runtime/model.h"
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

}  // namespace

Status Model::EnterGroup() {
  comm::Communicator& group = *options_.group;
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<uint64_t> all, comm::GatherValues(group, group_recipe_));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return InvalidArgument(
        fmt::format("rank {} runs another model, or with other options, than rank 0", rank));
  }
  DSV4_RETURN_IF_ERROR(AgreeOnWeights(group));
  DSV4_RETURN_IF_ERROR(LearnStageLayouts());
  if (options_.placement.num_shards > 1) {
    DSV4_ASSIGN_OR_RETURN_STATUS(shards_, group.Split(place().stage()));
  }
  if (options_.make_device_group) DSV4_RETURN_IF_ERROR(MakeDeviceGroups());
  if (group.rank() == 0) journal_ = std::make_shared<kv::StateJournal>(layout_->num_places);
  in_group_ = true;
  return {};
}

Status Model::AgreeOnWeights(comm::Communicator& group) {
  // The very same files on one machine: as they were opened, so they are.
  const std::array<uint64_t, 2> place = {files_->place().has_value(), files_->place().value_or(0)};
  DSV4_ASSIGN_OR_RETURN_STATUS(const auto places, comm::GatherValues(group, place));
  if (place[0] != 0 && std::ranges::count(places, places[0]) == group.size()) return {};
  LogInfo("ranks: their checkpoints are different files, so every byte is read and compared");
  const Result<uint64_t> mine = files_->Wait(io::ContentDigest::kForever);
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
Status Model::LearnStageLayouts() {
  std::vector<int32_t> mine;
  for (const kv::LayerCacheLayout& layer : layout_->layers) {
    const auto numbers = NumbersOf(layer);
    mine.insert(mine.end(), numbers.begin(), numbers.end());
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<std::vector<int32_t>> all,
                               comm::GatherLists(*options_.group, mine));
  stage_layouts_.clear();
  const auto num_shards = static_cast<size_t>(options_.placement.num_shards);
  for (size_t rank = 0; rank < all.size(); rank += num_shards) {
    kv::CacheLayout layout = *layout_;
    layout.shard.index = 0;
    layout.layers.clear();
    for (size_t i = 0; i + kNumbersOfLayer <= all[rank].size(); i += kNumbersOfLayer)
      layout.layers.push_back(LayerOf(std::span(all[rank]).subspan(i).first<kNumbersOfLayer>()));
    stage_layouts_.push_back(std::move(layout));
  }
  return {};
}

Status Model::MakeDeviceGroups() {
  if (shards_ != nullptr) {
    DSV4_ASSIGN_OR_RETURN_STATUS(device_shards_,
                                 options_.make_device_group(*shards_, DeviceGroupOf::kShards));
  }
  if (options_.placement.num_stages > 1) {
    DSV4_ASSIGN_OR_RETURN_STATUS(device_group_,
                                 options_.make_device_group(*options_.group, DeviceGroupOf::kStages));
  }
  return {};
}

Status Model::CheckDeviceGroups() {
  if (device_shards_ != nullptr) DSV4_RETURN_IF_ERROR(device_shards_->Check());
  return device_group_ == nullptr ? Status() : device_group_->Check();
}

Status Model::EndOnDevice() {
  if (device_shards_ == nullptr && device_group_ == nullptr) return {};
  // Nothing that others wait for stays queued here.
  ops::OpContext& context = *backend_.context;
  float any = 0;
  DSV4_RETURN_IF_ERROR(context.memory().CopyToHost(&any, rope_buffer_.data(), sizeof(any), context.stream()));
  return CheckDeviceGroups();
}

void Model::AwaitCause() {
  if (device_shards_ == nullptr && device_group_ == nullptr) return;
  const auto end = std::chrono::steady_clock::now() + kProcessEnds;
  while (options_.group->Check().ok() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

Status Model::EndGroup(const Status& why) {
  AwaitCause();
  options_.group->Fail(why);  // The others wait for what this rank will not give.
  return options_.group->Check();
}

Status Model::SendToRanks(const StepMessage& message) {
  DSV4_CHECK(!dismissed_) << "the other ranks do not follow";
  std::vector<std::byte> bytes = Encode(message);
  return comm::BroadcastBytes(*options_.group, bytes, 0);
}

Status Model::Dismiss() {
  DSV4_CHECK(in_group_ && journal_ != nullptr) << "rank 0 of a group dismisses the others";
  if (dismissed_) return {};
  DSV4_RETURN_IF_ERROR(SendToRanks({.kind = StepKind::kLeave, .events = {}, .chunks = {}}));
  dismissed_ = true;
  return options_.group->Barrier();
}

Status Model::Announce(std::span<const SequenceChunk> chunks) {
  StepMessage message;
  if (journal_ != nullptr) message.events = journal_->Take();
  for (const SequenceChunk& chunk : chunks) {
    message.chunks.push_back({.state = chunk.state->number(),
                              .length = chunk.state->length(),
                              .logits = static_cast<uint8_t>(chunk.logits),
                              .tokens = {chunk.tokens.begin(), chunk.tokens.end()},
                              .num_following = chunk.num_following});
  }
  return SendToRanks(message);
}

Status Model::Follow() {
  DSV4_CHECK(in_group_ && journal_ == nullptr) << "rank 0 does not follow";
  for (;;) {
    std::vector<std::byte> bytes;
    DSV4_RETURN_IF_ERROR(comm::BroadcastBytes(*options_.group, bytes, 0, comm::Wait::kForever));
    const Result<StepMessage> message = DecodeStepMessage(bytes);
    if (!message) {
      options_.group->Fail(message.error());
      return message.error();
    }
    if (message->kind != StepKind::kQueued) followed_.reset();  // Waits.
    if (message->kind == StepKind::kLeave) return options_.group->Barrier();
    const Status ready = FollowEvents(message->events);
    switch (message->kind) {
      case StepKind::kQueued:
        DSV4_RETURN_IF_ERROR(FollowQueued(message->chunks, ready));
        break;
      case StepKind::kDrafts:
        DSV4_RETURN_IF_ERROR(FollowDraft(message->chunks, ready));
        break;
      default:
        DSV4_RETURN_IF_ERROR(FollowStep(message->chunks, ready));
    }
  }
}

Status Model::FollowEvents(std::span<const kv::StateEvent> events) {
  Status first;
  const auto fail = [&](const Status& status) {
    if (first.ok()) first = status;
  };
  for (const kv::StateEvent& event : events) {
    const auto found = copies_.find(event.state);
    const auto copy = found == copies_.end() || !found->second.state ? nullptr : &*found->second.state;
    switch (event.kind) {
      case kv::StateEvent::Kind::kCreated:
        copies_[event.state] = {.place = event.place};
        break;
      case kv::StateEvent::Kind::kCopied: {
        // Shares the memory of its source, as the original does.
        const auto source = copies_.find(event.source);
        StateCopy& made = copies_[event.state];
        made = {.place = event.place};
        if (source == copies_.end() || !source->second.state) break;
        Result<kv::SequenceState> fork = source->second.state->Fork();
        if (fork) {
          made.state = std::move(*fork);
        } else {
          fail(fork.error());
        }
        break;
      }
      case kv::StateEvent::Kind::kRewound:
        if (copy == nullptr) break;
        if (const Status rewound = copy->Rewind(event.num_tokens); !rewound.ok()) fail(rewound);
        break;
      case kv::StateEvent::Kind::kFilled: {
        StateCopy& filled = copies_[event.state];
        Result<kv::SequenceState> made = NewSequenceAt(filled.place);
        if (!made) {
          fail(made.error());
          break;
        }
        filled.state = std::move(*made);
        const Status status = kv::FillWithRandomRows(*filled.state, event.num_tokens, event.source);
        if (!status.ok()) fail(status);
        break;
      }
      case kv::StateEvent::Kind::kReset:
        if (copy != nullptr) copy->Reset();
        break;
      case kv::StateEvent::Kind::kDestroyed:
        copies_.erase(event.state);
        break;
    }
  }
  return first;
}

Result<kv::SequenceState*> Model::CopyOf(const ChunkMessage& message) {
  StateCopy& found = copies_[message.state];
  std::optional<kv::SequenceState>& copy = found.state;
  if (!copy && message.length == 0) {
    DSV4_ASSIGN_OR_RETURN(copy, NewSequenceAt(found.place));
  }
  if (copy && copy->length() == message.length) return &*copy;
  return Error(FailedPrecondition(fmt::format("sequence {}: {} tokens here, {} on rank 0", message.state,
                                              copy ? copy->length() : 0, message.length)));
}

Status Model::FollowStep(std::span<const ChunkMessage> messages, const Status& events) {
  Status ready = events;
  std::vector<SequenceChunk> chunks;
  for (const ChunkMessage& message : messages) {
    const Result<kv::SequenceState*> copy = CopyOf(message);
    if (!copy && ready.ok()) ready = copy.error();
    chunks.push_back({.state = copy ? *copy : nullptr,
                      .tokens = message.tokens,
                      .logits = static_cast<LogitsRows>(message.logits),
                      .num_following = message.num_following});
  }
  const Result<StepOutput> output = RunStep(chunks, ready, nullptr);
  // Failures of rank 0 alone are its report; the group goes on.
  return output ? Status() : options_.group->Check();
}

}  // namespace dsv4::model
