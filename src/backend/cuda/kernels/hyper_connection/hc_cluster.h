// hc_pre of a few tokens as one launch, with hc_post in front of it and the norm behind it.
#pragma once

#include "backend/cuda/runtime/cuda_context.h"
#include "ops/hyper_connection.h"

namespace dsv4::backend::cuda {

// Whether the device has room for a cluster of streams so wide, which are at most kMaxHcClusterDim.
bool FitsHcCluster(CudaContext& context, int64_t dim);

// hc_pre; hc_post is done by the same launch if its own was the last and made these streams (OpenHcPost).
Status HcPreInCluster(CudaContext& context, const ops::HcPreArgs& args);

}  // namespace dsv4::backend::cuda
