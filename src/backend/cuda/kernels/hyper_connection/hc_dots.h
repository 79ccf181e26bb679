// hc_pre's dot products of many tokens on tensor cores for doubles.
#pragma once

#include "backend/cuda/runtime/launch_context.h"
#include "tensor/tensor.h"

namespace dsv4::backend::cuda {

// dots: [num_tokens, num_rows + 1, HcParts(dim)], as hyper_connection.cu's other kernels give them, bit for
// bit.
void LaunchHcDotsMma(LaunchContext& context, const TensorView& streams, const TensorView& fn, double* dots);

}  // namespace dsv4::backend::cuda
