// scale, swiglu and moe_combine: an element a thread, or of many elements several.
#pragma once

#include "backend/cuda/lowering/work/hyper_connection.h"
#include "backend/cuda/lowering/work/moe.h"
#include "ops/scale.h"

namespace dsv4::backend::cuda {

class LaunchContext;

void LaunchScale(LaunchContext& context, const ops::ScaleArgs& args);

void LaunchSwiglu(LaunchContext& context, const SwigluWork& work);
// SwiGLU of bf16, in rows of a multiple of eight (SwigluRules).
void LaunchManySwiglus(LaunchContext& context, const SwigluWork& work);

void LaunchMoeCombine(LaunchContext& context, const CombineWork& work);

}  // namespace dsv4::backend::cuda
