// Lowering: ops that may share a launch are recorded, and launched when their partners are known. That is
// when an op comes that does not go with them, or when the list is handed to the device.
#pragma once

#include <cstddef>

#include "backend/cuda/lowering/launch/fusion_rules.h"
#include "backend/cuda/lowering/launch/recorded_op.h"
#include "backend/cuda/runtime/device_queue.h"

namespace dsv4::backend::cuda {

class CudaContext;

// Thread-safe as DeviceQueue is.
class Lowering final : public PendingLaunches, public DeviceRoom {
 public:
  explicit Lowering(CudaContext& context);
  ~Lowering() override;
  Lowering(const Lowering&) = delete;
  Lowering& operator=(const Lowering&) = delete;

  // Whether a rule takes the op of what was recorded before: it is part of that launch, or knows what it left
  // (Effect). If not, nothing has changed. Not for ops that a rule hands work to: Record.
  bool Fuse(RecordedOp op);
  // The same, or it begins a group: what was recorded before is launched in front of it.
  void Record(RecordedOp op);
  // The op was launched just now, and the next one may want to know.
  void Note(RecordedOp op);

  // Whether what was recorded last leaves these rows, so that another step on them costs no launch.
  bool ContinuesRows(const RowsOperand& rows) const;

  // Memory for hc_pre's dot products of kMaxHcStepTokens: the launch that takes post and comb over belongs to
  // another op.
  Result<float*> HcDots();

  // Memory for a list that is chosen over ranks: attention_part reads it. The same for as many numbers as
  // before, or fewer.
  Result<int32_t*> ChosenRows(int64_t count);

  // PendingLaunches
  size_t num_launches() const override;
  Status Launch() override;
  // DeviceRoom
  size_t shared_bytes() const override;
  bool HoldsPair(const LinearWork& groups, const LinearWork& linear) const override;
  bool HoldsExpertsAndLinear(const JointExpertsWork& experts, const LinearWork& linear) const override;
  bool HoldsHcCluster(int64_t dim, bool over_ranks) const override;

 private:
  CudaContext& context_;
  OpGroup group_;
  Buffer hc_dots_;
  Buffer chosen_rows_;
};

// Makes the launches of a group (launch_group.cc): the only code that knows which kernel does which ops.
Status LaunchGroup(CudaContext& context, const OpGroup& group);

}  // namespace dsv4::backend::cuda
