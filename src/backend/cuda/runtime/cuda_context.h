// CudaContext: what the ops of this backend use beside their arguments: the queue, scratch memory, and the
// tables of experts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/device/numeric/device_array.h"
#include "backend/cuda/device/sync/grid_barrier.h"
#include "backend/cuda/lowering/explain.h"
#include "backend/cuda/lowering/rule.h"
#include "backend/cuda/runtime/device_memory.h"
#include "backend/cuda/runtime/expert_tables.h"
#include "backend/cuda/runtime/launch_context.h"
#include "base/parallel.h"
#include "base/per_thread.h"
#include "ops/op_context.h"
#include "ops/step_replay.h"
#include "tensor/arena.h"

namespace dsv4::backend::cuda {

class ExpertTiers;
class Lowering;
struct HostTierOptions;
enum class FusionRule : uint8_t;

class CudaContext final : public ops::OpContext, public LaunchContext {
 public:
  CudaContext(std::shared_ptr<DeviceQueue> queue, BlockScaledMode block_scaled, Fp8Products fp8_products,
              HostTierOptions host);
  ~CudaContext() override;

  Memory& memory() override { return memory_; }
  ThreadPool& threads() override { return threads_; }
  Stream stream() override { return queue_->stream(); }

  ops::StepReplayer* replayer() override { return explain_ == nullptr ? replayer_.get() : nullptr; }
  // Null: steps are walked.
  void SetReplayer(std::shared_ptr<ops::StepReplayer> replayer) { replayer_ = std::move(replayer); }
  // Replayer of the queue and of this context's scratch memory. The context must outlive it.
  std::shared_ptr<ops::StepReplayer> MakeReplayer();

  DeviceQueue& queue() { return *queue_; }
  // For those that may outlive the context.
  const std::shared_ptr<DeviceQueue>& shared_queue() const { return queue_; }
  // Layers' experts that limits().fp8_products would have taken and that are not e4m3 exactly (CudaCounters).
  int64_t num_inexact_experts() const { return num_inexact_experts_; }
  void CountInexactExperts() { ++num_inexact_experts_; }

  // LaunchContext
  const DeviceLimits& limits() const override { return limits_; }
  Fault* fault() const override { return queue_->fault(); }
  int MostClusters(const void* kernel, unsigned blocks, unsigned threads, size_t shared_bytes) override {
    return queue_->MostClusters(kernel, blocks, threads, shared_bytes);
  }
  bool RunsAtOnce(const void* kernel, unsigned blocks, unsigned threads, size_t shared_bytes) override {
    return queue_->RunsAtOnce(kernel, blocks, threads, shared_bytes);
  }
  Result<void*> ScratchBytes(size_t num_bytes) override;
  Result<GridBarrier*> GridBarriers() override;
  bool FindsPacked(const PackedTokensWork& tokens) override;
  void NotePacked(const PackedTokensWork& tokens, const MemoryRange& x, const MemoryRange& y) override;

  // Runs `body`, which queues an op's work, between the checks that every op needs. `operand` is any operand
  // of the op.
  template <typename Body>
  Status RunOp(const OpRecord& record, const TensorView& operand, Body&& body) {
    DSV4_RETURN_IF_ERROR(CheckOperand(record, operand));
    DSV4_RETURN_IF_ERROR(scratch_.Recycle());
    DSV4_RETURN_IF_ERROR(queue_->BeginOp(record));
    const Arena::Scope scope(scratch_);
    record_ = &record;
    const Status status = body();
    record_ = nullptr;
    const Status ended = queue_->EndOp();
    return status.ok() ? ended : status;
  }

  // Notes which kernel the op that runs now takes, and why. It is for explain(), and for the log where an op
  // of the release's size ends at the kernel for all the rest.
  template <typename Kernel>
  void Chose(const Plan<Kernel>& plan) {
    if (explain_ != nullptr || plan.kind == RuleKind::kAny)
      NoteChoice(plan.file, plan.reason, plan.kind, plan.microseconds);
  }
  // Notes that the op that runs now became part of the launch in front, by that rule.
  void Fused(FusionRule rule) {
    if (explain_ != nullptr) NoteFusion(rule);
  }
  // Null unless the backend was made to explain.
  Explanations* explain() { return explain_.get(); }
  void Explain(bool log) { explain_ = std::make_unique<Explanations>(log); }

  // Scratch that is taken while it lives is given back with it.
  Arena::Scope ScratchScope() { return Arena::Scope(scratch_); }

  // A device copy of the values that `make(source, &values)` derives from an array of the op's arguments, for
  // launches of the op that runs now. In a step that is replayed `make` is called with the step's new array,
  // and the rest of the op is not. All else that `make` knows must follow from the op's other arguments.
  template <typename T, typename Source, typename Make>
  Result<DeviceArray<T>> StageFrom(std::span<const Source> source, const Make& make,
                                   StagedGrowth growth = StagedGrowth::kNone) {
    std::vector<T> values;
    make(source, &values);
    StagedOrigin origin = {.array = std::as_bytes(source), .growth = growth};
    if (queue_->recording()) {
      origin.fill = [make](const void* array, size_t count) {
        struct Again : std::vector<T> {};
        auto& again = PerThread<Again>();
        again.clear();
        make(std::span(static_cast<const Source*>(array), count), &again);
        return std::as_bytes(std::span<const T>(again));
      };
    }
    DSV4_ASSIGN_OR_RETURN(const void* data, queue_->Stage(values.data(), values.size() * sizeof(T), origin));
    return DeviceArray<T>{static_cast<const T*>(data), static_cast<int64_t>(values.size())};
  }
  // A number that launches may depend on, of an array of the op's arguments: `number(source)`, an int64_t.
  // Launches may depend on such an array in no other way; in a step that is replayed the number is still the
  // same. `number` knows what `make` above may know.
  template <typename Source, typename Number>
  int64_t NumberFrom(std::span<const Source> source, const Number& number) {
    const int64_t value = number(source);
    if (queue_->recording()) {
      queue_->NoteNumber(
          std::as_bytes(source),
          [number](const void* array, size_t count) {
            return int64_t{number(std::span(static_cast<const Source*>(array), count))};
          },
          value);
    }
    return value;
  }

  ExpertTables& expert_tables() { return expert_tables_; }
  ExpertTiers& expert_tiers() { return *expert_tiers_; }
  Lowering& lowering() { return *lowering_; }

 private:
  void AddLaunch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes,
                 std::span<const LaunchArgument> arguments) override {
    queue_->AddLaunch(kernel, grid, block, shared_bytes, arguments);
  }
  Result<const void*> StageBytes(const void* source, size_t num_bytes) override {
    return queue_->Stage(source, num_bytes);
  }
  Status CheckOperand(const OpRecord& record, const TensorView& operand) const;

  void NoteFusion(FusionRule rule);
  void NoteChoice(const char* kernel, const char* reason, RuleKind kind, double microseconds = 0.0);

  std::shared_ptr<DeviceQueue> queue_;
  DeviceMemory memory_;
  ThreadPool threads_{1};
  Arena scratch_;
  Buffer grid_barriers_;
  ExpertTables expert_tables_;
  const DeviceLimits limits_;
  int64_t num_inexact_experts_ = 0;
  const OpRecord* record_ = nullptr;  // Record of the op that runs now.
  std::unique_ptr<Explanations> explain_;
  std::shared_ptr<ops::StepReplayer> replayer_;
  std::set<std::string> missed_;  // Ops that the log has told of.
  std::unique_ptr<ExpertTiers> expert_tiers_;
  std::unique_ptr<Lowering> lowering_;  // Last: it uses all of this.
};

}  // namespace dsv4::backend::cuda
