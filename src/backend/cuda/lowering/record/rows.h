// Records of ops that turn rows into rows: steps (lowering/work/rows.h).
#pragma once

#include <vector>

#include "backend/cuda/lowering/work/rows.h"
#include "base/status.h"

namespace dsv4::backend::cuda {

class CudaContext;

// See RowsWork. Unimplemented for rows of more than kMaxRowWidth elements.
Status AddRowStep(CudaContext& context, const RowsOperand& rows, const RowStep& step,
                  std::vector<MemoryRange> touches = {}, const void* beside = nullptr);

}  // namespace dsv4::backend::cuda
