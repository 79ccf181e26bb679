// Follower: a rank other than 0, which runs its part of what rank 0 does.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "model/runtime/model_parts.h"
#include "model/runtime/step_queue.h"

namespace dsv4::model {

struct ChunkMessage;

class Follower {
 public:
  Follower(ModelParts& model, StepQueue& queue) : model_(model), queue_(queue) {}

  // Model::Follow.
  Status Run();

 private:
  struct StateCopy {
    int64_t place = 0;
    // Made when it is used, or with its source: then there may be memory.
    std::optional<kv::SequenceState> state = {};
  };

  // The first error of changes that this rank's copies could not take.
  Status TakeOver(std::span<const kv::StateEvent> events);
  Status Step(std::span<const ChunkMessage> messages, const Status& events);
  Status Queue(std::span<const ChunkMessage> messages, const Status& events);
  Status Draft(std::span<const ChunkMessage> messages, const Status& events);
  // This rank's copy of a state; FailedPrecondition where it is not as long as rank 0's, ResourceExhausted without memory.
  Result<kv::SequenceState*> CopyOf(const ChunkMessage& message);

  ModelParts& model_;
  StepQueue& queue_;
  std::unique_ptr<QueuedStep> queued_;    // The step that this rank has queued last.
  std::map<uint64_t, StateCopy> copies_;  // By the states' numbers.
};

}  // namespace dsv4::model
