// head_rms_norm, rope and rounding to FP4 of many tokens with many heads. A block a row (row_tracks.h) would
// spend most of its time on beginning.
#pragma once

#include "backend/cuda/runtime/launch_context.h"
#include "ops/hadamard_fp4.h"
#include "ops/head_rms_norm.h"
#include "ops/rope.h"

namespace dsv4::backend::cuda {

Status HeadRmsNormOfMany(LaunchContext& context, const ops::HeadRmsNormArgs& args);

Status RopeOfMany(LaunchContext& context, const ops::RopeArgs& args);

// Without a rotation; what RoundPath::kEights takes.
Status RoundFp4OfMany(LaunchContext& context, const ops::HadamardFp4Args& args);

}  // namespace dsv4::backend::cuda
