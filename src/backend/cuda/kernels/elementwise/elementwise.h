// scale, swiglu and moe_combine: an element a thread, or of many elements several.
#pragma once

#include "backend/cuda/lowering/work/hyper_connection.h"
#include "backend/cuda/lowering/work/moe.h"
#include "ops/scale.h"

namespace dsv4::backend::cuda {

class CudaContext;

void LaunchScale(CudaContext& context, const ops::ScaleArgs& args);

void LaunchSwiglu(CudaContext& context, const SwigluWork& work);
// SwiGLU of bf16, in rows of a multiple of eight (SwigluRules).
void LaunchManySwiglus(CudaContext& context, const SwigluWork& work);

void LaunchMoeCombine(CudaContext& context, const CombineWork& work);

}  // namespace dsv4::backend::cuda
