// Beginning and end of a context of CUDA ops, which is put together from rooms above it.
#include <utility>

#include "backend/cuda/lowering/launch/lowering.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "backend/cuda/tiers/expert_tiers.h"

namespace dsv4::backend::cuda {

CudaContext::CudaContext(std::shared_ptr<DeviceQueue> queue, BlockScaledMode block_scaled,
                         Fp8Products fp8_products, HostTierOptions host)
    : queue_(std::move(queue)),
      memory_(queue_),
      scratch_(memory_),
      expert_tables_(memory_),
      limits_{.compute_capability = queue_->compute_capability(),
              .code_capability = queue_->code_capability(),
              .num_sms = queue_->num_sms(),
              .shared_bytes = queue_->shared_bytes(),
              .block_scaled = block_scaled,
              .fp8_products = fp8_products},
      expert_tiers_(std::make_unique<ExpertTiers>(*this, std::move(host))),
      lowering_(std::make_unique<Lowering>(*this)) {}

// Work of the host for what is in flight is waited for: its thread is still there.
CudaContext::~CudaContext() {
  queue_->DropRecords();
  if (expert_tiers_->host() == nullptr) return;
  queue_->DescribeHostFaults({});
  (void)queue_->CallOnStream("the end of the backend",
                             [](cudaStream_t stream) { return cudaStreamSynchronize(stream); });
}

bool CudaContext::FindsPacked(const PackedTokensWork& tokens) {
  return lowering_->Fuse({.kind = OpKind::kTokensToPack, .accesses = {}, .work = tokens});
}

void CudaContext::NotePacked(const PackedTokensWork& tokens, const MemoryRange& x, const MemoryRange& y) {
  lowering_->Note(
      {.kind = OpKind::kPackedLinear, .accesses = {.reads = {{x}}, .writes = {{y}}}, .work = tokens});
}

void CudaContext::NoteFusion(FusionRule rule) { NoteChoice("", RowOf(rule).name, RuleKind::kFast); }

}  // namespace dsv4::backend::cuda
