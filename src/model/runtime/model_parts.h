// ModelParts: a loaded model on one rank, as its steps, queued steps and drafts use it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kv/sequence_state.h"
#include "model/graph/layer_rows.h"
#include "model/runtime/model_group.h"
#include "model/runtime/model_options.h"
#include "model/runtime/origin.h"
#include "ops/op_table.h"
#include "tensor/arena.h"

namespace dsv4::model {

struct EngramLookup;
struct Graph;

struct ModelParts {
  ModelParts(ModelConfig model_config, ModelWeights model_weights, const ops::Backend& model_backend,
             const ModelOptions& model_options);
  ~ModelParts();

  // Makes what follows from weights and options: plans, the cache's layout, tables on the device.
  Status Prepare();
  // Graph of passes; it refers to members.
  Graph MakeGraph() const;
  Result<kv::SequenceState> NewSequenceAt(int64_t place) const;

  const RankPlace& place() const { return weights.place; }
  bool asynchronous() const { return backend.context->memory().asynchronous(); }
  bool has_dspark() const { return weights.dspark.has_value(); }
  bool can_draft() const { return weights.mtp.has_value() || has_dspark(); }
  std::string why_no_draft() const;
  int64_t most_drafts() const {
    return has_dspark() ? weights.dspark->config.block_size : kv::kMostDraftRows;
  }

  const uint64_t number;  // Among all models of this process: what was recorded of one is no other's.
  ModelConfig config;
  ModelWeights weights;
  ops::Backend backend;
  ModelOptions options;
  std::vector<LayerPlan> layers;  // Plans of weights.layers.
  std::shared_ptr<const kv::CacheLayout> layout;
  Buffer rope_buffer;
  TensorView rope_plain;
  TensorView rope_compress;
  Arena arena;
  int64_t num_layers = 0;
  std::unique_ptr<EngramLookup> engram;
  mutable LayerRows layer_rows;
  WeightFiles files;
  ModelGroup group;

 private:
  Status UploadRopeTables();
};

}  // namespace dsv4::model
