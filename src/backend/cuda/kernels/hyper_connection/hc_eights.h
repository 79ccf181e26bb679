// hc_pre of 9 to 64 tokens in two launches, the first with hc_post in front of it, the second with the norm behind it.
#pragma once

#include "backend/cuda/runtime/cuda_context.h"
#include "ops/hyper_connection.h"

namespace dsv4::backend::cuda {

// hc_pre; hc_post is done by the first launch if its own was the last and made these streams (OpenHcPost).
Status HcPreInEights(CudaContext& context, const ops::HcPreArgs& args);

}  // namespace dsv4::backend::cuda
