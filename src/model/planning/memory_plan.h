// MemoryPlan: what a model, its sequences and a step occupy on a device that everything is copied to, known
// before anything is copied.
//
// Nothing is estimated. The model is made, and runs its largest pass, on a backend that computes nothing and
// only counts its memory. Memory that the ops of a backend allocate for themselves is not in the plan; the
// backend knows it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "model/runtime/model.h"

namespace dsv4::model {

struct MemoryRequest {
  int64_t num_sequences = 1;
  int64_t context = 4096;  // Tokens of each; more than the model's positions count as those.
};

struct MemoryPlan {
  int64_t num_layers = 0;
  RankPlace place;  // In a group: what follows is this rank's.
  int64_t num_sequences = 0;
  int64_t context = 0;
  // Bytes.
  int64_t weights = 0;       // With rotary tables and everything small.
  int64_t expert_cache = 0;  // Slots of ExpertSplit::slots.
  int64_t step = 0;      // Bytes of one pass of ModelOptions::max_chunk_tokens with logits of its last row.
  int64_t sequence = 0;  // Bytes of one sequence of `context` tokens.
  double per_token = 0;  // By which a sequence grows.
  // Host memory: experts that are cached, in memory that cannot be swapped, and those that it multiplies.
  int64_t pinned = 0;
  int64_t on_host = 0;
  int64_t slot = 0;  // Bytes of one cached expert, the largest.

  int64_t total() const { return weights + expert_cache + step + num_sequences * sequence; }
};

// Errors: those of Model::FromCheckpoint; InvalidArgument for a request that asks for less than one.
Result<MemoryPlan> PlanMemory(const ModelConfig& config,
                              const std::shared_ptr<const io::Checkpoint>& checkpoint,
                              const ModelOptions& options, const MemoryRequest& request);

// A device as the plan sees it.
struct DeviceRoom {
  std::string name;
  int64_t free = 0;      // Bytes that can be allocated now.
  int64_t reserved = 0;  // Bytes of them that the backend's ops take.
};

// The table of a plan beside a device's room, one line a part.
std::string MemoryTable(const MemoryPlan& plan, const DeviceRoom& room);

// Tokens that each sequence of the plan may have where all of it takes at most `usable` bytes. At most the
// model's positions, and 0 where not even empty sequences fit. `options` are those of the plan.
int64_t LongestContext(const ModelConfig& config, const ModelOptions& options, const MemoryPlan& plan,
                       int64_t usable);

// ResourceExhausted when the plan does not fit: the table, and what would fit (fewer tokens, fewer layers,
// several devices).
Status CheckRoom(const ModelConfig& config, const std::shared_ptr<const io::Checkpoint>& checkpoint,
                 const ModelOptions& options, const MemoryPlan& plan, const DeviceRoom& room);

// The most residents of every layer that leave room for the rest of the plan. The host has the others
// (ModelOptions::experts, which `options` does not name). ResourceExhausted where not even a model without
// residents fits; the errors of PlanMemory.
Result<ExpertSplit> FitExperts(const ModelConfig& config,
                               const std::shared_ptr<const io::Checkpoint>& checkpoint,
                               const ModelOptions& options, const MemoryRequest& request,
                               const DeviceRoom& room);

// `split`, whose slots are not decided, with as many as leave room for the rest of the plan, at most one for
// every cached expert. ResourceExhausted where there is not even room for those of one layer; the errors of
// PlanMemory.
Result<ExpertSplit> FitSlots(const ModelConfig& config,
                             const std::shared_ptr<const io::Checkpoint>& checkpoint,
                             const ModelOptions& options, const ExpertSplit& split,
                             const MemoryRequest& request, const DeviceRoom& room);

}  // namespace dsv4::model
