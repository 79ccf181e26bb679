// Recorder in front of launches: ops fused with the pending group, or the group launched first.
#include "backend/cuda/lowering/launch/lowering.h"

#include <utility>

#include "backend/cuda/kernels/gemm/gemv_pair.h"
#include "backend/cuda/kernels/hyper_connection/hc_cluster.h"
#include "backend/cuda/kernels/moe/gemv_joint.h"
#include "backend/cuda/runtime/cuda_context.h"

namespace dsv4::backend::cuda {

Lowering::Lowering(CudaContext& context) : context_(context) { context_.queue().SetPending(this); }
Lowering::~Lowering() { context_.queue().SetPending(nullptr); }

bool Lowering::Fuse(RecordedOp op) {
  const auto lock = context_.queue().Lock();
  const std::optional<Fusion> fusion = FindFusion(group_, op, *this);
  if (!fusion.has_value() || fusion->pattern->effect == Effect::kHandOver) return false;
  if (fusion->pattern->effect == Effect::kJoin) group_.Add(std::move(op));
  context_.Fused(fusion->rule);
  return true;
}

void Lowering::Record(RecordedOp op) {
  const auto lock = context_.queue().Lock();
  if (const std::optional<Fusion> fusion = FindFusion(group_, op, *this); fusion.has_value()) {
    context_.Fused(fusion->rule);
    if (fusion->pattern->effect == Effect::kJoin) {
      group_.Add(std::move(op));
      return;
    }
    if (fusion->pattern->effect == Effect::kHandOver) fusion->pattern->hand_over(group_, op);
  }
  context_.queue().LaunchPending();
  group_.Add(std::move(op));
}

void Lowering::Note(RecordedOp op) {
  const auto lock = context_.queue().Lock();
  context_.queue().LaunchPending();
  group_.Add(std::move(op));
  group_.launched = true;
}

bool Lowering::ContinuesRows(const RowsOperand& rows) const {
  const auto lock = context_.queue().Lock();
  return group_.rows.has_value() && group_.rows->Continues(rows);
}

Result<float*> Lowering::HcDots() {
  if (hc_dots_.data() == nullptr) {
    constexpr int64_t kMaxParts = kWideRowThreads / 32;
    constexpr int64_t kCount = kMaxHcStepTokens * (kHcMixRows + 1) * kMaxParts;
    DSV4_ASSIGN_OR_RETURN(hc_dots_, context_.memory().Allocate(kCount * sizeof(float)));
  }
  return reinterpret_cast<float*>(hc_dots_.data());
}

Result<int32_t*> Lowering::ChosenRows(int64_t count) {
  const auto num_bytes = static_cast<size_t>(count) * sizeof(int32_t);
  if (chosen_rows_.num_bytes() < num_bytes) {
    DSV4_ASSIGN_OR_RETURN(chosen_rows_, context_.memory().Allocate(num_bytes));
  }
  context_.queue().Keep(chosen_rows_);  // A longer list gets other memory.
  return reinterpret_cast<int32_t*>(chosen_rows_.data());
}

size_t Lowering::num_launches() const {
  if (group_.ops.empty() || group_.launched) return 0;
  // Each may be packed, and multiplied by a launch of its own.
  if (const auto* const linear = std::get_if<LinearWork>(&group_.ops[0].work);
      linear != nullptr && linear->either) {
    return 2 * group_.ops.size();
  }
  for (const RecordedOp& op : group_.ops) {
    if (const auto* const pre = std::get_if<HcPreWork>(&op.work); pre != nullptr)
      return pre->path == HcPrePath::kTokenTiles ? 2 : 1;
    if (const auto* const part = std::get_if<AttentionPartWork>(&op.work); part != nullptr)
      return part->list.selected != nullptr ? 2 : 1;
  }
  return 1;
}

Status Lowering::Launch() {
  if (group_.ops.empty()) return {};
  Status status;
  if (!group_.launched) {
    const auto scratch = context_.ScratchScope();
    status = LaunchGroup(context_, group_);
  }
  group_.ops.clear();  // Keeps its memory.
  group_.launched = false;
  group_.leaves_mix = false;
  group_.links = {};
  group_.rows.reset();
  return status;
}

size_t Lowering::shared_bytes() const { return context_.limits().shared_bytes; }
bool Lowering::HoldsPair(const LinearWork& groups, const LinearWork& linear) const {
  return HoldsGemvPair(context_, groups, linear);
}
bool Lowering::HoldsExpertsAndLinear(const JointExpertsWork& experts, const LinearWork& linear) const {
  return HoldsGemvJoint(context_, experts, &linear);
}
bool Lowering::HoldsHcCluster(int64_t dim, bool over_ranks) const {
  return cuda::HoldsHcCluster(context_, dim, over_ranks);
}

}  // namespace dsv4::backend::cuda
