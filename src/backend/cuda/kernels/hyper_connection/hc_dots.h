// hc_pre's dot products of many tokens on the matrix unit for doubles.
#pragma once

#include "backend/cuda/runtime/cuda_context.h"

namespace dsv4::backend::cuda {

// Streams [num_tokens, 4, dim] of bf16 and fn [num_rows, 4 * dim], in runs (HasHcRuns).
bool HasHcDotsMma(const TensorView& streams, const TensorView& fn);
// dots: [num_tokens, num_rows + 1, HcParts(dim)], as hyper_connection.cu's other kernels give them, bit for bit.
void LaunchHcDotsMma(CudaContext& context, const TensorView& streams, const TensorView& fn, double* dots);

}  // namespace dsv4::backend::cuda
