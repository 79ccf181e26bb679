// How bytes come from the device to the host: waited for, or in flight.
#include <cstring>
#include <utility>

#include "backend/cuda/runtime/copy_bytes.h"
#include "backend/cuda/runtime/device_queue.h"
#include "backend/cuda/runtime/step_record.h"

namespace dsv4::backend::cuda {
namespace {

constexpr const char* kCopyToHost = "copy to the host";

}  // namespace

Status DeviceQueue::CopyToHost(void* destination, const void* source, size_t num_bytes) {
  const std::lock_guard wait_lock(wait_mutex_);
  {
    const std::lock_guard lock(mutex_);
    Spoil("the host waited for bytes");
  }
  if (num_bytes > kMaxWrittenBytes) return TransferToHost(destination, source, num_bytes);
  if (pinned_->Holds(destination, num_bytes)) return WriteToHost(destination, source, num_bytes);
  if (!landing_) {
    DSV4_ASSIGN_OR_RETURN_STATUS(Buffer landing, AllocateOnHost(kMaxWrittenBytes));
    if (!pinned_->Holds(landing.data(), num_bytes)) return TransferToHost(destination, source, num_bytes);
    landing_ = std::move(landing);
  }
  DSV4_RETURN_IF_ERROR(WriteToHost(landing_.data(), source, num_bytes));
  if (num_bytes > 0) std::memcpy(destination, landing_.data(), num_bytes);
  return {};
}

// By a kernel that ends the list.
Status DeviceQueue::WriteToHost(void* destination, const void* source, size_t num_bytes) {
  DSV4_RETURN_IF_ERROR(BeginOp({kCopyToHost, {Shape{static_cast<int64_t>(num_bytes)}}}));
  LaunchCopyToHost(*this, destination, source, num_bytes, host_fault_);
  uint64_t lists = 0;
  {
    const std::lock_guard lock(mutex_);
    --num_open_ops_;
    ++num_moves_;
    DSV4_RETURN_IF_ERROR(FlushOfOp());
    lists = lists_since_wait_;
  }
  return FinishWait(kCopyToHost, lists);
}

// By TMA.
Status DeviceQueue::TransferToHost(void* destination, const void* source, size_t num_bytes) {
  uint64_t lists = 0;
  {
    const std::lock_guard lock(mutex_);
    DSV4_RETURN_IF_ERROR(StartWait(kCopyToHost));
    lists = lists_since_wait_;
    DSV4_RETURN_IF_ERROR(
        Check(cudaMemcpyAsync(destination, source, num_bytes, cudaMemcpyDeviceToHost, stream_), kCopyToHost));
  }
  return FinishWait(kCopyToHost, lists);
}

// A copy that is in flight, with a fault record of its own: others may be behind it.
class DeviceQueue::QueuedCopy final : public PendingCopy {
 public:
  QueuedCopy(std::shared_ptr<DeviceQueue> queue, Buffer fault, cudaEvent_t done, uint64_t num_recorded,
             int64_t num_lists)
      : queue_(std::move(queue)),
        fault_(std::move(fault)),
        done_(done),
        num_recorded_(num_recorded),
        num_lists_(num_lists) {}
  // Errors have no reader then; a device that is lost stays so.
  ~QueuedCopy() override { static_cast<void>(Wait()); }

  Status Wait() override {
    if (done_ == nullptr) return status_;
    const cudaError_t error = cudaEventSynchronize(done_);  // Others may queue meanwhile.
    const std::lock_guard lock(queue_->mutex_);
    queue_->events_.push_back(std::exchange(done_, nullptr));
    status_ = queue_->Check(error, kCopyToHost);
    if (!status_.ok()) return status_;
    queue_->num_waited_for_ = std::max(queue_->num_waited_for_, num_recorded_);
    // Nothing is behind it, or little: the device waits for what comes next, and gets the first of it soon.
    const int64_t num_lists = queue_->graphs_.counters().lists;
    const StepRecords& records = *queue_->records_;
    const bool little = records.lists_at_copy == num_lists_ && records.lists_behind == num_lists;
    if (num_lists == num_lists_ || little) queue_->lists_since_wait_ = 0;
    status_ = queue_->EndWait(*static_cast<const Fault*>(fault_.data()));
    return status_;
  }

 private:
  std::shared_ptr<DeviceQueue> queue_;
  Buffer fault_;  // Pinned.
  cudaEvent_t done_;
  uint64_t num_recorded_;
  int64_t num_lists_;  // Lists that had been handed over, ever.
  Status status_;
};

cudaError_t DeviceQueue::TakeEvent(cudaEvent_t* event) {
  if (events_.empty()) return cudaEventCreateWithFlags(event, cudaEventDisableTiming);
  *event = events_.back();
  events_.pop_back();
  return cudaSuccess;
}

Result<std::unique_ptr<PendingCopy>> DeviceQueue::CopyStarted(Buffer fault) {
  cudaEvent_t done = nullptr;
  DSV4_TRY(Check(TakeEvent(&done), kCopyToHost));
  if (const Status recorded = Check(cudaEventRecord(done, stream_), kCopyToHost); !recorded.ok()) {
    events_.push_back(done);
    return Error(recorded);
  }
  records_->lists_at_copy = graphs_.counters().lists;
  // No copy has yet to read what was staged.
  if (num_open_ops_ == 0) DSV4_TRY(Check(staged_->SwitchHalf(stream_), kCopyToHost));
  return std::make_unique<QueuedCopy>(shared_from_this(), std::move(fault), done, num_recorded_,
                                      graphs_.counters().lists);
}

Result<std::unique_ptr<PendingCopy>> DeviceQueue::StartCopyToHost(void* destination, const void* source,
                                                                  size_t num_bytes) {
  if (num_bytes == 0) {  // Work queued behind the copy in front is handed over, and is little.
    const std::lock_guard lock(mutex_);
    Spoil("a copy of no bytes");
    DSV4_TRY(FlushOfOp());
    records_->lists_behind = graphs_.counters().lists;
    return std::make_unique<QueuedCopy>(shared_from_this(), Buffer(), nullptr, 0, 0);
  }
  DSV4_ASSIGN_OR_RETURN(Buffer fault, AllocateOnHost(sizeof(Fault)));
  *static_cast<Fault*>(fault.data()) = {};
  if (!pinned_->Holds(destination, num_bytes) || !pinned_->Holds(fault.data(), sizeof(Fault))) {
    // The driver pins no more memory.
    DSV4_TRY(CopyToHost(destination, source, num_bytes));
    return std::make_unique<QueuedCopy>(shared_from_this(), std::move(fault), nullptr, 0, 0);
  }
  DSV4_TRY(BeginOp({kCopyToHost, {Shape{static_cast<int64_t>(num_bytes)}}}));
  LaunchCopyToHost(*this, destination, source, num_bytes, static_cast<Fault*>(fault.data()));
  const std::lock_guard lock(mutex_);
  --num_open_ops_;
  ++num_moves_;
  DSV4_TRY(FlushOfOp());
  NoteEnd({destination, source, num_bytes}, fault.data());
  DSV4_TRY(CheckForecast());
  return CopyStarted(std::move(fault));
}

Result<Buffer> DeviceQueue::AllocateOnHost(size_t num_bytes) {
  {
    const std::lock_guard lock(mutex_);
    DSV4_TRY(Enter());
  }
  return pinned_->Allocate(num_bytes);
}

}  // namespace dsv4::backend::cuda
