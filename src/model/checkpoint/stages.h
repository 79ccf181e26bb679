// Which layers each stage of a placement has, from the bytes of the checkpoint's headers and the plans of
// layers.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "model/checkpoint/resolved_checkpoint.h"
#include "model/config/config.h"
#include "model/placement/placement.h"

namespace dsv4::model {

// InvalidArgument for a placement that the model's first `max_layers` layers (0: all) do not take. There may be
// fewer cuts than the stages want, or candidates that want all entries on every shard.
Status CheckPlacement(const ModelConfig& config, const Placement& placement, int64_t max_layers);

// Bytes of a layer's linears: what a stage pays for it.
int64_t LayerBytes(const ResolvedLayer& layer);

// The layers of each stage, of the first `num_layers`. A layer that reads rows of another is in its stage:
// rows do not travel. As many cuts as the stages want (CheckPlacement).
std::vector<Range> StageLayers(const ResolvedCheckpoint& resolved, const ModelConfig& config,
                               int64_t num_layers, int num_stages);

}  // namespace dsv4::model
