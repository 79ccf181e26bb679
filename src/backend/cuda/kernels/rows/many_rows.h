// Op rms_norm of many tokens, with the steps behind it where their window rows are stored. A warp goes
// through its rows and keeps them in registers. Its bits are those of the same steps in row_tracks.cu. There
// a block a row would spend most of its time on its start and on barriers.
#pragma once

#include "backend/cuda/lowering/work/rows.h"

namespace dsv4::backend::cuda {

class LaunchContext;

void LaunchManyRows(LaunchContext& context, const ManyRows& rows);

}  // namespace dsv4::backend::cuda
