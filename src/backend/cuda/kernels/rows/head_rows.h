// Rows of many heads, normed, rotated, or rotated and rounded: a warp goes through some rows and keeps them
// in registers. What it gives are the bits of the same steps in row_tracks.cu, whose blocks of a row each
// would be too many.
#pragma once

#include "backend/cuda/lowering/work/rows.h"

namespace dsv4::backend::cuda {

class LaunchContext;

void LaunchHeadRows(LaunchContext& context, const HeadRows& rows);

}  // namespace dsv4::backend::cuda
