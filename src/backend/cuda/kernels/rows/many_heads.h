// head_rms_norm and rope of many tokens with many heads, where a block a row (row_tracks.h) would spend most of its time on beginning.
#pragma once

#include "backend/cuda/runtime/cuda_context.h"
#include "ops/head_rms_norm.h"
#include "ops/rope.h"

namespace dsv4::backend::cuda {

Status HeadRmsNormOfMany(CudaContext& context, const ops::HeadRmsNormArgs& args);

Status RopeOfMany(CudaContext& context, const ops::RopeArgs& args);

}  // namespace dsv4::backend::cuda
