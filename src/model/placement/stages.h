// Which layers each stage of a placement has, from the bytes of the checkpoint's headers.
#pragma once

#include <cstdint>
#include <vector>

#include "model/checkpoint/resolved_checkpoint.h"
#include "model/placement/placement.h"

namespace dsv4::model {

// Bytes of a layer's linears: what a stage pays for it.
int64_t LayerBytes(const ResolvedLayer& layer);

// Of the first `num_layers`; at least as many layers as stages (BalanceLayers).
std::vector<Range> StageLayers(const ResolvedCheckpoint& resolved, int64_t num_layers, int num_stages);

}  // namespace dsv4::model
