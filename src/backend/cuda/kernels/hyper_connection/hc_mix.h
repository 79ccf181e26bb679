// What hc_pre's kernels are told (lowering/work/hyper_connection.h), from its operands.
#pragma once

#include "backend/cuda/lowering/work/hyper_connection.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "ops/hyper_connection.h"

namespace dsv4::backend::cuda {

HcPreShape ShapeOf(const TensorView& streams, const TensorView& fn, const void* u);

HcPreParams ParamsOf(const ops::HcPreArgs& args, const double* dots, int num_parts);

// hc_pre of whatever hc_cluster and hc_eights do not take: dot products, then the mix.
Status LaunchHcPreInParts(CudaContext& context, const ops::HcPreArgs& args);

}  // namespace dsv4::backend::cuda
