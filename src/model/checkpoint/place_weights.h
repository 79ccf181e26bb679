// PlaceLoaded: hands weights to a backend as they are loaded. Linear weights go through its PrepareWeight op;
// small tensors move to its memory (on the host they stay where they are).
#pragma once

#include <vector>

#include "model/checkpoint/weights.h"
#include "model/placement/expert_split.h"
#include "ops/op_table.h"

namespace dsv4::model {

struct PlaceOptions {
  ExpertSplit experts;                             // Split of none: all are resident.
  std::vector<std::vector<int32_t>> expert_order;  // By layer, as TiersOf; empty: by id.
  const io::Checkpoint* checkpoint =
      nullptr;  // Source whose numbers stay for the experts of the host; null: they stay anyway.
  // On the host, for a model larger than memory: all but routed experts and the embedding is copied to
  // memory. The kernel does not take that back, as it does a file's pages.
  bool copy_all_but_experts = false;
};

// Places the weights loaded since the last call; where the backend's memory is a device's, copies on the host
// end with it. Errors name the weight.
Status PlaceLoaded(const ops::Backend& backend, const PlaceOptions& options, ModelWeights& weights);

}  // namespace dsv4::model
