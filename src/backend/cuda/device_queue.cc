#include "backend/cuda/device_queue.h"

#include <fmt/format.h>

#include <algorithm>

namespace dsv4::backend::cuda {
namespace {

// After these the context is lost: every later call fails with the same error.
bool IsSticky(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

Status Describe(const Fault& fault) {
  const int64_t last = fault.limit - 1;
  switch (fault.kind) {
    case FaultKind::kNone:
      return {};
    case FaultKind::kTokenId:
      return OutOfRange(
          fmt::format("op embed: token_ids[{}]: {}, want 0 to {}", fault.place[0], fault.value, last));
    case FaultKind::kPosition:
      return InvalidArgument(
          fmt::format("op rope: positions[{}]: {}, want 0 or more", fault.place[0], fault.value));
    case FaultKind::kRouterTokenId:
      return OutOfRange(
          fmt::format("op router: token_ids[{}]: {}, want 0 to {}", fault.place[0], fault.value, last));
    case FaultKind::kHashExpert:
      return OutOfRange(fmt::format("op router: hash_table[{}, {}]: {}, want 0 to {}", fault.place[0],
                                    fault.place[1], fault.value, last));
    case FaultKind::kExpertIndex:
      return OutOfRange(fmt::format("op routed_experts: indices[{}, {}]: {}, want 0 to {}", fault.place[0],
                                    fault.place[1], fault.value, last));
    case FaultKind::kSelectedEntry:
      return InvalidArgument(fmt::format("op attention: selected[{}, {}]: {}, want -1 or 0 to {}",
                                         fault.place[0], fault.place[1], fault.value, last));
    case FaultKind::kRepeatedEntry:
      return InvalidArgument(
          fmt::format("op attention: selected[{}]: entry {} more than once, want no repeats", fault.place[0],
                      fault.value));
  }
  return Internal(fmt::format("a kernel reported fault {}", static_cast<int>(fault.kind)));
}

}  // namespace

std::string OpRecord::ToString() const {
  std::string text = name;
  for (const Shape& shape : shapes) {
    if (shape.rank() > 0) text += " " + shape.ToString();
  }
  return text;
}

Result<std::shared_ptr<DeviceQueue>> DeviceQueue::Create(int device) {
  std::shared_ptr<DeviceQueue> queue(new DeviceQueue());
  queue->index_ = device;
  DSV4_TRY(queue->Check(cudaSetDevice(device), "cudaSetDevice"));
  DSV4_TRY(
      queue->Check(cudaDeviceGetAttribute(&queue->num_processors_, cudaDevAttrMultiProcessorCount, device),
                   "cudaDeviceGetAttribute"));
  DSV4_TRY(
      queue->Check(cudaStreamCreateWithFlags(&queue->stream_, cudaStreamNonBlocking), "cudaStreamCreate"));
  // A pool of our own that keeps what it is given back: a step then allocates without asking the driver.
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, device};
  DSV4_TRY(queue->Check(cudaMemPoolCreate(&queue->pool_, &properties), "cudaMemPoolCreate"));
  uint64_t keep_all = UINT64_MAX;
  DSV4_TRY(queue->Check(cudaMemPoolSetAttribute(queue->pool_, cudaMemPoolAttrReleaseThreshold, &keep_all),
                        "cudaMemPoolSetAttribute"));
  DSV4_TRY(
      queue->Check(cudaMalloc(reinterpret_cast<void**>(&queue->device_fault_), sizeof(Fault)), "cudaMalloc"));
  DSV4_TRY(queue->Check(cudaMallocHost(reinterpret_cast<void**>(&queue->host_fault_), sizeof(Fault)),
                        "cudaMallocHost"));
  DSV4_TRY(queue->Check(cudaMemsetAsync(queue->device_fault_, 0, sizeof(Fault), queue->stream_),
                        "cudaMemsetAsync"));
  return queue;
}

// Nobody is left to hear of errors here, and at the end of the process the driver may already be gone.
DeviceQueue::~DeviceQueue() {
  if (cudaSetDevice(index_) != cudaSuccess) return;
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  if (device_fault_ != nullptr) cudaFree(device_fault_);
  if (host_fault_ != nullptr) cudaFreeHost(host_fault_);
  if (pool_ != nullptr) cudaMemPoolDestroy(pool_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

Status DeviceQueue::Enter() {
  {
    const std::lock_guard lock(mutex_);
    if (!broken_.ok()) return broken_;
  }
  return Check(cudaSetDevice(index_), "cudaSetDevice");
}

Status DeviceQueue::Check(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return {};
  const std::lock_guard lock(mutex_);
  std::string message = fmt::format("CUDA device {}, {}: {} ({})", index_, what, cudaGetErrorString(error),
                                    cudaGetErrorName(error));
  if (error == cudaErrorMemoryAllocation) {
    // An allocation that fails is no fault of the device; it must not be found again by the next launch check.
    cudaGetLastError();
    return ResourceExhausted(std::move(message));
  }
  if (!IsSticky(error)) return Internal(std::move(message));
  message += "; " + Journal();
  if (broken_.ok()) broken_ = Internal("the device is lost: " + message);
  return broken_;
}

void DeviceQueue::Record(const OpRecord& record) {
  const std::lock_guard lock(mutex_);
  journal_[num_recorded_++ % kJournalLength] = record;
}

std::string DeviceQueue::Journal() const {
  if (num_recorded_ == 0) return "no op was queued since the last wait";
  std::string text = fmt::format("{} ops were queued since the last wait, the last of them:", num_recorded_);
  const uint64_t count = std::min<uint64_t>(num_recorded_, kJournalLength);
  for (uint64_t i = num_recorded_ - count; i < num_recorded_; ++i) {
    text += (i + count == num_recorded_ ? " " : ", ") + journal_[i % kJournalLength].ToString();
  }
  if (num_recorded_ > 1) text += "; DSV4_CUDA_SYNC=1 names the op at fault";
  return text;
}

Status DeviceQueue::TakeFault() {
  if (host_fault_->kind == FaultKind::kNone) return {};
  const Status status = Describe(*host_fault_);
  DSV4_RETURN_IF_ERROR(
      Check(cudaMemsetAsync(device_fault_, 0, sizeof(Fault), stream_), "clearing the fault record"));
  return status;
}

Status DeviceQueue::Wait(std::string_view what) {
  const std::lock_guard wait_lock(wait_mutex_);
  DSV4_RETURN_IF_ERROR(Check(
      cudaMemcpyAsync(host_fault_, device_fault_, sizeof(Fault), cudaMemcpyDeviceToHost, stream_), what));
  DSV4_RETURN_IF_ERROR(Check(cudaStreamSynchronize(stream_), what));
  {
    const std::lock_guard lock(mutex_);
    num_recorded_ = 0;
  }
  return TakeFault();
}

}  // namespace dsv4::backend::cuda
