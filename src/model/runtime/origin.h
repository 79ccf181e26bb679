// Origin of the rows that a model computes: the bytes of its weights, and all else that changes a number.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/content_digest.h"
#include "model/config/config.h"
#include "model/runtime/model_options.h"
#include "ops/op_table.h"

namespace dsv4::model {

// Hash of all but the weights' bytes, the backend and the program. It holds the configuration's numbers, the
// layers that run, numerics, and which experts the host multiplies.
uint64_t RecipeOf(const ModelConfig& config, const ModelOptions& options, int64_t num_layers);

// The same of what all ranks must have alike, whatever part of the model they have.
uint64_t GroupRecipeOf(const ModelConfig& config, const ModelWeights& weights, int64_t num_layers,
                       const ModelOptions& options, const ops::ParallelPolicy& policy);

// The checkpoints that a model was loaded from: its own, and its drafter's. Immutable but for what it waits
// for; thread-safe.
class WeightFiles {
 public:
  void Add(const std::shared_ptr<const io::Checkpoint>& checkpoint, bool past_cache);
  // The checkpoint's that was added first.
  io::ContentDigest& first() { return *digests_.front(); }
  // Reads what has not been read, on threads of low priority.
  void Start();
  // A hash of every byte. The errors of io::ContentDigest::Wait; FailedPrecondition where the weights are of
  // no checkpoint.
  Result<uint64_t> Wait(std::chrono::milliseconds at_most);
  // io::ContentDigest::Unchanged of all.
  Status Unchanged() const;
  // io::Checkpoint::place of all.
  std::optional<uint64_t> place() const { return place_; }

 private:
  std::vector<std::unique_ptr<io::ContentDigest>> digests_;
  std::optional<uint64_t> place_ = 0;
};

}  // namespace dsv4::model
