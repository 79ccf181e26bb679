// Context of CUDA ops: checks of operands, scratch memory, grid barriers, and notes for --explain.
#include "backend/cuda/runtime/cuda_context.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"

namespace dsv4::backend::cuda {
namespace {

int64_t WidestOf(const OpRecord& record) {
  int64_t widest = 0;
  for (const Shape& shape : record.shapes) {
    for (int i = 1; i < shape.rank(); ++i) widest = std::max(widest, shape[i]);
  }
  return widest;
}

}  // namespace

Status CudaContext::CheckOperand(const OpRecord& record, const TensorView& operand) const {
  if (operand.num_elements() == 0 || operand.device == queue_->device()) return {};
  return InvalidArgument(fmt::format("op {}: operands are not in the memory of CUDA device {}", record.name,
                                     queue_->device().index));
}

void CudaContext::NoteChoice(const char* kernel, const char* reason, RuleKind kind, double microseconds) {
  if (record_ == nullptr) return;
  if (explain_ != nullptr) {
    explain_->Add(
        record_->ToString(), kernel,
        microseconds > 0.0 ? fmt::format("{}; {:.0f} us by estimate", reason, microseconds) : reason);
  }
  // Small models take such kernels by rights: their sizes have no fast path.
  constexpr int64_t kReleaseWidth = 1024;
  if (kind == RuleKind::kAny && WidestOf(*record_) >= kReleaseWidth && missed_.insert(record_->name).second) {
    LogInfo(fmt::format("backend cuda: op {}: no fast kernel takes it; it runs as {} ({})",
                        record_->ToString(), kernel, reason));
  }
}

Result<GridBarrier*> CudaContext::GridBarriers() {
  if (grid_barriers_.data() == nullptr) {
    DSV4_ASSIGN_OR_RETURN(grid_barriers_, memory_.Allocate(kNumGridBarriers * sizeof(GridBarrier)));
  }
  return reinterpret_cast<GridBarrier*>(grid_barriers_.data());
}

Result<void*> CudaContext::ScratchBytes(size_t num_bytes) {
  DSV4_ASSIGN_OR_RETURN(const TensorView view,
                        scratch_.Allocate(DType::kU8, {static_cast<int64_t>(num_bytes)}));
  return view.data;
}

}  // namespace dsv4::backend::cuda
