// The launch of row steps (lowering/work/rows.h), a block a row: of tracks, which are rows with all that is
// done to each of them. Which steps come to which launch is decided in lowering/launch/row_group.cc.
#pragma once

#include "backend/cuda/lowering/work/rows.h"

namespace dsv4::backend::cuda {

class LaunchContext;

// num_rows: of all tracks.
void LaunchRowTracks(LaunchContext& context, const RowTracks& tracks, int64_t num_rows);

}  // namespace dsv4::backend::cuda
