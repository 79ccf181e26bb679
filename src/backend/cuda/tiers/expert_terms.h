// Expert outputs before the combine, of a part of a layer's experts.
#pragma once

#include "backend/cuda/kernels/moe/terms_work.h"
#include "backend/cuda/runtime/cuda_context.h"

namespace dsv4::backend::cuda {

// By the kernel that fits. `table` begins with the first of work.args.experts.
Status TermsOfTable(CudaContext& context, const ExpertTable& table, const TermsWork& work);

}  // namespace dsv4::backend::cuda
