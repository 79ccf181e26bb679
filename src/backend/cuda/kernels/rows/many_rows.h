// rms_norm of many tokens, with what follows where their window rows are stored: a warp goes through its rows and keeps them in registers.
// What it gives are the bits of the same steps in row_tracks.cu, where a block a row would spend most of its time on beginning and meeting.
#pragma once

#include "backend/cuda/lowering/work/rows.h"

namespace dsv4::backend::cuda {

class CudaContext;

void LaunchManyRows(CudaContext& context, const ManyRows& rows);

}  // namespace dsv4::backend::cuda
