// Whether a model fits the machine that asks, and what would: the last part of `dsv4 inspect`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/json.h"
#include "base/machine_memory.h"
#include "io/checkpoint.h"
#include "model/config/config.h"
#include "model/runtime/model.h"

namespace dsv4::apps {

struct MachineFit {
  // Demand in bytes on the host: weights are mapped from their file, the rest is allocated.
  int64_t weights = 0;
  int64_t beside = 0;  // States of all sequences and one step.
  MachineMemory memory;
  int64_t longest_context =
      0;  // Context that fits for as many sequences; at most the model's; 0: not even the weights.
  int64_t layers = 0;         // The first ones that fit where the whole does not.
  int64_t machine_bytes = 0;  // Memory of a machine that would do.

  struct Gpu {
    int64_t free = 0;    // Free memory of the GPU that --backend cuda would take.
    int64_t wanted = 0;  // Memory that the model and the backend's own scratch take.
  };
  std::optional<Gpu> gpu;  // None: no GPU, or no CUDA in this build.
  // How many GPUs of 80 and of 141 GB would do, for weights and states by arithmetic; 0: more than 8.
  int gpus_80 = 0;
  int gpus_141 = 0;

  bool fits() const { return weights + beside <= memory.available; }
  // Part of the weights that has no room in memory and is read from the disk again and again.
  int64_t from_disk() const;
};

struct MachineFitRequest {
  model::ModelConfig config;
  std::shared_ptr<const io::Checkpoint> checkpoint;
  model::ModelOptions options;  // Options of one rank on the host.
  int64_t batch = 0;
  int64_t context = 0;
  int64_t weights = 0;   // Bytes of the layers that would run.
  int64_t fixed = 0;     // Bytes of a sequence that do not grow,
  double per_token = 0;  // and by which it grows.
  int64_t step = 0;      // Bytes.
  int64_t num_layers = 0;
  // Part of the weights that layers have; the rest is there with any number of them.
  int64_t layer_weights = 0;
};

// Errors: as ReadMachineMemory and model::PlanMemory.
Result<MachineFit> FitMachine(const MachineFitRequest& request);

// Lines under a heading, the verdict first.
std::string ToText(const MachineFit& fit, const MachineFitRequest& request);
Json ToJson(const MachineFit& fit);

}  // namespace dsv4::apps
