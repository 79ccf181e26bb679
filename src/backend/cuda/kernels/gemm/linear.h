// linear and grouped_linear of any shape and any weight: tensor cores where its products are exact in bf16,
// fp32 otherwise.
#pragma once

#include "backend/cuda/kernels/gemm/gemm_wgmma.h"

namespace dsv4::backend::cuda {

Status LinearOfAny(LaunchContext& context, const GemmArgs& args);

}  // namespace dsv4::backend::cuda
