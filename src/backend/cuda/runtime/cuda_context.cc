#include "backend/cuda/runtime/cuda_context.h"

#include <fmt/format.h>

namespace dsv4::backend::cuda {

Status CudaContext::CheckOperand(const OpRecord& record, const TensorView& operand) const {
  if (operand.num_elements() == 0 || operand.device == queue_->device()) return {};
  return InvalidArgument(fmt::format("op {}: operands are not in the memory of CUDA device {}", record.name,
                                     queue_->device().index));
}

Result<GridBarrier*> CudaContext::GridBarriers() {
  if (grid_barriers_.data() == nullptr) {
    DSV4_ASSIGN_OR_RETURN(grid_barriers_, memory_.Allocate(kNumGridBarriers * sizeof(GridBarrier)));
  }
  return reinterpret_cast<GridBarrier*>(grid_barriers_.data());
}

Result<void*> CudaContext::Scratch(size_t num_bytes) {
  DSV4_ASSIGN_OR_RETURN(const TensorView view,
                        scratch_.Allocate(DType::kU8, {static_cast<int64_t>(num_bytes)}));
  return view.data;
}

}  // namespace dsv4::backend::cuda
