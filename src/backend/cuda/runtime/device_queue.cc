// Queue of one CUDA device: pending lists, launches, sticky errors, fault records and the names of the last
// ops.
#include "backend/cuda/runtime/device_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string_view>

#include "backend/cuda/device/sync/stage_times.h"
#include "backend/cuda/runtime/copy_bytes.h"
#include "backend/cuda/runtime/device_code.h"
#include "backend/cuda/runtime/shared_limits.h"
#include "backend/cuda/runtime/step_record.h"
#include "base/check.h"
#include "base/text.h"

namespace dsv4::backend::cuda {
namespace {

// From here on an allocation asks first for memory that lies idle. Such are an arena that grew or slots of experts, a few in a run.
constexpr size_t kLargeAllocation = size_t{256} << 20;
// Less is kept for what comes next.
constexpr uint64_t kIdle = uint64_t{64} << 20;

// A pool keeps memory that it is given back, in pieces in which a larger allocation has no room. Without this
// an arena that grew was there twice.
cudaError_t GiveBackIdle(cudaMemPool_t pool, cudaStream_t stream) {
  uint64_t reserved = 0;
  uint64_t used = 0;
  cudaError_t error = cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved);
  if (error == cudaSuccess) error = cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used);
  if (error != cudaSuccess || reserved < used + kIdle) return error;
  // Freed memory is idle when the work in front of that is done.
  error = cudaStreamSynchronize(stream);
  return error != cudaSuccess ? error : cudaMemPoolTrimTo(pool, 0);
}

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

std::string_view OpOfIndices(FaultKind kind) {
  if (kind == FaultKind::kTermIndex) return "expert_terms";
  return kind == FaultKind::kSummedIndex ? "sum_terms" : "routed_experts";
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
    case FaultKind::kTermIndex:
    case FaultKind::kSummedIndex:
      return OutOfRange(fmt::format("op {}: indices[{}, {}]: {}, want 0 to {}", OpOfIndices(fault.kind),
                                    fault.place[0], fault.place[1], fault.value, last));
    case FaultKind::kSelectedEntry:
      return InvalidArgument(fmt::format("op attention: selected[{}, {}]: {}, want -1 or 0 to {}",
                                         fault.place[0], fault.place[1], fault.value, last));
    case FaultKind::kRepeatedEntry:
      return InvalidArgument(
          fmt::format("op attention: selected[{}]: entry {} more than once, want no repeats", fault.place[0],
                      fault.value));
    case FaultKind::kCandidateBlock:
      return OutOfRange(fmt::format("op indexer_select: within[{}, {}]: block {}, want one of {}",
                                    fault.place[0], fault.place[1], fault.value,
                                    Counted(fault.limit, "entry")));
    case FaultKind::kCacheRow:
      return InvalidArgument(fmt::format(
          "op store_rows: row {}, column {}: {} is no number of the format that rows are packed in",
          fault.place[0], fault.place[1], std::bit_cast<float>(static_cast<uint32_t>(fault.value))));
    // The next step may find the host well: a server says "try again".
    case FaultKind::kHostExpertsLate:
      return {StatusCode::kUnavailable,
              fmt::format("op routed_experts: the host has not multiplied its experts of layer {} of {} "
                          "within {} ms (request {})",
                          fault.place[0], Counted(fault.place[1], "row"), fault.limit, fault.value)};
    case FaultKind::kHostExpertsFailed:
      return {StatusCode::kUnavailable,
              fmt::format("op routed_experts: the host could not multiply its experts of layer {} "
                          "of {} (request {})",
                          fault.place[0], Counted(fault.place[1], "row"), fault.value)};
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

DeviceQueue::DeviceQueue(const QueueOptions& options)
    : options_(options),
      pinned_(std::make_shared<PinnedBlocks>()),
      records_(std::make_shared<StepRecords>()) {}

Result<std::shared_ptr<DeviceQueue>> DeviceQueue::Create(const QueueOptions& options) {
  std::shared_ptr<DeviceQueue> queue(new DeviceQueue(options));
  DSV4_TRY(queue->Enter());
  DSV4_TRY(
      queue->Check(cudaDeviceGetAttribute(&queue->num_sms_, cudaDevAttrMultiProcessorCount, options.device),
                   "cudaDeviceGetAttribute"));
  int major = 0;
  int minor = 0;
  DSV4_TRY(queue->Check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, options.device),
                        "cudaDeviceGetAttribute"));
  DSV4_TRY(queue->Check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, options.device),
                        "cudaDeviceGetAttribute"));
  queue->compute_capability_ = 10 * major + minor;
  int shared_bytes = 0;
  DSV4_TRY(queue->Check(
      cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, options.device),
      "cudaDeviceGetAttribute"));
  queue->shared_bytes_ = static_cast<size_t>(shared_bytes);
  DSV4_TRY(queue->Check(FindCodeCapability(&queue->code_capability_), "cudaFuncGetAttributes"));
  // Code that runs as on an older device has no more room than there.
  constexpr size_t kSharedBytesOfAmpere = size_t{163} * 1024;
  if (queue->code_capability_ < 90 && queue->compute_capability_ >= 90)
    queue->shared_bytes_ = std::min(queue->shared_bytes_, kSharedBytesOfAmpere);
  if (options.most_shared_bytes != 0)
    queue->shared_bytes_ = std::min(queue->shared_bytes_, options.most_shared_bytes);
  DSV4_TRY(
      queue->Check(cudaStreamCreateWithFlags(&queue->stream_, cudaStreamNonBlocking), "cudaStreamCreate"));
  // A pool of our own that keeps what it is given back: a step then allocates without asking the driver.
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, options.device};
  DSV4_TRY(queue->Check(cudaMemPoolCreate(&queue->pool_, &properties), "cudaMemPoolCreate"));
  uint64_t keep_all = UINT64_MAX;
  DSV4_TRY(queue->Check(cudaMemPoolSetAttribute(queue->pool_, cudaMemPoolAttrReleaseThreshold, &keep_all),
                        "cudaMemPoolSetAttribute"));
  DSV4_TRY(
      queue->Check(cudaMalloc(reinterpret_cast<void**>(&queue->device_fault_), sizeof(Fault)), "cudaMalloc"));
  DSV4_TRY(queue->Check(cudaMallocHost(reinterpret_cast<void**>(&queue->host_fault_), sizeof(Fault)),
                        "cudaMallocHost"));
  *queue->host_fault_ = {};
  DSV4_TRY(queue->Check(cudaMemsetAsync(queue->device_fault_, 0, sizeof(Fault), queue->stream_),
                        "cudaMemsetAsync"));
  DSV4_TRY(queue->Check(queue->staging_.Allocate(Staging::kHalfBytes), "allocating staging memory"));
  DSV4_TRY(queue->Check(queue->staging_between_.Allocate(Staging::kHalfBytesBetween),
                        "allocating staging memory"));
  return queue;
}

// Errors have no reader here, and at the end of the process the driver may already be gone.
DeviceQueue::~DeviceQueue() {
  if (cudaSetDevice(options_.device) != cudaSuccess) return;
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  WriteStageTimes();
  if (device_fault_ != nullptr) cudaFree(device_fault_);
  if (host_fault_ != nullptr) cudaFreeHost(host_fault_);
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  if (pool_ != nullptr) cudaMemPoolDestroy(pool_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

// Makes the device current for the calling thread.
Status DeviceQueue::Enter() {
  DSV4_RETURN_IF_ERROR(broken_);
  return Check(cudaSetDevice(options_.device), "cudaSetDevice");
}

// The Status of one CUDA call, `what` naming it. Notes errors that the device does not recover from.
Status DeviceQueue::Check(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // It has been seen.
  std::string message = fmt::format("CUDA device {}, {}: {} ({})", options_.device, what,
                                    cudaGetErrorString(error), cudaGetErrorName(error));
  if (error == cudaErrorMemoryAllocation) return ResourceExhausted(std::move(message));
  if (!IsSticky(error)) return Internal(std::move(message));
  message += "; " + Journal();
  if (broken_.ok()) broken_ = Internal("the device is lost: " + message);
  return broken_;
}

Status DeviceQueue::BeginOp(const OpRecord& record) {
  const std::lock_guard lock(mutex_);
  DSV4_RETURN_IF_ERROR(broken_);
  SpoilIfForeign();
  journal_[num_recorded_++ % kJournalLength] = record;
  list_ops_.push_back(record);
  launches_before_.push_back(list_.size());
  ++num_open_ops_;
  return {};
}

void DeviceQueue::SetPending(PendingLaunches* pending) {
  const std::lock_guard lock(mutex_);
  pending_ = pending;
}

// Errors are reported with the next op, as a refused launch is.
void DeviceQueue::LaunchPending() {
  const std::lock_guard lock(mutex_);
  if (pending_ == nullptr || launches_pending_) return;
  const bool any = pending_->num_launches() > 0;
  launches_pending_ = true;
  const Status launched = pending_->Launch();
  launches_pending_ = false;
  if (!launched.ok() && refused_.ok()) refused_ = launched;
  // An op that is open has launched nothing yet: its launches come behind these.
  if (any && num_open_ops_ > 0 && !launches_before_.empty()) launches_before_.back() = list_.size();
}

void DeviceQueue::BeginLaunch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes) {
  // 48 KB are always allowed, with what a kernel declares itself counted in.
  constexpr size_t kAlwaysAllowed = 16 * 1024;
  if (shared_bytes > kAlwaysAllowed && shared_bytes > shared_limits_[kernel]) {
    Status allowed = Enter();
    if (allowed.ok()) {
      allowed = Check(AllowSharedBytes(options_.device, kernel, shared_bytes), "cudaFuncSetAttribute");
    }
    if (!allowed.ok() && refused_.ok()) refused_ = allowed;
    shared_limits_[kernel] = shared_bytes;
  }
  bool overlaps = options_.overlap && code_capability_ >= 90 && !after_copy_;  // DeviceLimits.
  if (list_.size() == 0) {
    BeginUpload(list_);
    overlaps = false;  // Uploaded memory may be read at once.
  }
  list_.BeginLaunch(kernel, grid, block, shared_bytes, overlaps);
  after_copy_ = false;
}

void DeviceQueue::AddLaunch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes,
                            std::span<const LaunchArgument> arguments) {
  const std::lock_guard lock(mutex_);
  LaunchPending();
  BeginLaunch(kernel, grid, block, shared_bytes);
  for (const LaunchArgument& argument : arguments) list_.AddArgument(argument);
  ++num_launches_;
}

int DeviceQueue::MostClusters(const void* kernel, unsigned blocks, unsigned threads, size_t shared_bytes) {
  const std::lock_guard lock(mutex_);
  const auto [known, is_new] = most_clusters_.try_emplace(kernel, 0);
  if (!is_new) return known->second;
  if (shared_bytes > shared_bytes_ || !Enter().ok()) return 0;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = blocks;
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int count = 0;
  const bool ok =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) == cudaSuccess &&
      AllowSharedBytes(options_.device, kernel, shared_bytes) == cudaSuccess &&
      cudaOccupancyMaxActiveClusters(&count, kernel, &config) == cudaSuccess;
  if (!ok) cudaGetLastError();  // A no, not an error: there are other kernels.
  known->second = ok ? count : 0;
  return known->second;
}

bool DeviceQueue::RunsAtOnce(const void* kernel, unsigned blocks, unsigned threads, size_t shared_bytes) {
  const std::lock_guard lock(mutex_);
  if (shared_bytes > shared_bytes_) return false;
  BlocksAtOnce& known = blocks_at_once_[kernel];
  if (shared_bytes != known.shared_bytes) {
    if (!Enter().ok()) return false;
    int of_processor = 0;
    const bool ok = AllowSharedBytes(options_.device, kernel, shared_bytes) == cudaSuccess &&
                    cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                        &of_processor, kernel, static_cast<int>(threads), shared_bytes) == cudaSuccess;
    if (!ok) cudaGetLastError();  // A no, not an error: there are other kernels.
    known = {shared_bytes, ok ? static_cast<unsigned>(of_processor * num_sms_) : 0};
  }
  return blocks <= known.blocks;
}

Result<const void*> DeviceQueue::Stage(const void* source, size_t num_bytes, const StagedOrigin& origin) {
  const std::lock_guard lock(mutex_);
  const size_t capacity = StagedCapacity(num_bytes, origin.growth);
  if (capacity > Staging::kMaxArrayBytes) {
    DSV4_ASSIGN_OR_RETURN(void* const data, AllocateLocked(num_bytes));
    large_arrays_.push_back(data);
    DSV4_TRY(Check(cudaMemcpyAsync(data, source, num_bytes, cudaMemcpyHostToDevice, stream_),
                   "staging of an op's tables"));
    return data;
  }
  if (!staged_->Fits(capacity)) {
    Spoil("more arrays than staging memory holds");
    DSV4_TRY(Flush());
    DSV4_TRY(Check(staged_->SwitchHalf(stream_), "staging of an op's tables"));
  }
  DSV4_TRY(Check(staged_->AwaitHalf(), "staging of an op's tables"));
  NoteStaged(staged_->position().used, num_bytes, origin);
  return staged_->Put(source, num_bytes, capacity);
}

Status DeviceQueue::SetBetweenSteps(bool between) {
  const std::lock_guard lock(mutex_);
  Spoil("work between steps");
  DSV4_RETURN_IF_ERROR(FlushOfOp());
  staged_ = between ? &staging_between_ : &staging_;
  return {};
}

Status DeviceQueue::EndOp() {
  Status status;
  bool wait = options_.synchronous;
  {
    const std::lock_guard lock(mutex_);
    --num_open_ops_;
    if ((!large_arrays_.empty() && num_open_ops_ == 0) || ListSize() >= MaxListLaunches()) {
      status = FlushOfOp();
    }
    if (status.ok()) std::swap(status, refused_);
  }
  if (wait && status.ok()) status = Wait("an op that waits for itself");
  return status;
}

// Flush, and staged arrays with memory of their own go if no launch needs them any more.
Status DeviceQueue::FlushOfOp() {
  Status status = Flush();
  if (num_open_ops_ == 0) {
    for (void* const data : large_arrays_) cudaFreeAsync(data, stream_);
    large_arrays_.clear();
  }
  return status;
}

Status DeviceQueue::Flush() {
  DSV4_RETURN_IF_ERROR(Enter());
  LaunchPending();
  if (list_.size() == 0) {
    list_ops_.clear();
    launches_before_.clear();
    if (!staged_->HasNew()) return {};
    // Ranges of an op that has yet to make the launches that read them.
    BeginUpload(list_);
  }
  // The list begins with the bytes that its launches find in staging memory, if there are any.
  const Staging::Bytes staged = staged_->TakeNew();
  SetUpload(list_, staged);
  const size_t without_upload = staged.num_bytes == 0 ? 1 : 0;
  if (without_upload != 0) list_.SkipFirst();
  num_moves_ += 1 - static_cast<int64_t>(without_upload);
  if (options_.watch)
    options_.watch(list_.bytes(), {static_cast<const std::byte*>(staged.host), staged.num_bytes});
  size_t failed = 0;
  Status status;
  std::shared_ptr<const CudaGraph> graph;
  const cudaError_t error =
      graphs_.Run(list_, options_.graphs && !options_.synchronous, stream_, &failed, &graph);
  if (error != cudaSuccess) {
    // The op whose launch it was: the last that began at or before it.
    const auto after =
        std::upper_bound(launches_before_.begin(), launches_before_.end(), failed + without_upload);
    const bool named = failed < list_.size() && after != launches_before_.begin();
    const auto op = after - launches_before_.begin() - 1;
    status = Check(error, named ? "op " + list_ops_[static_cast<size_t>(op)].ToString()
                                : fmt::format("a graph of {}", Counted(list_.size(), "launch")));
  }
  NoteList(staged.num_bytes, std::move(graph));
  ++lists_since_wait_;
  list_.Clear();
  list_ops_.clear();
  launches_before_.clear();
  return status;
}

Result<void*> DeviceQueue::AllocateLocked(size_t num_bytes) {
  DSV4_TRY(Enter());
  Spoil("memory was allocated");
  void* data = nullptr;
  const size_t rounded = std::max<size_t>(num_bytes, 1);
  if (rounded >= kLargeAllocation) DSV4_TRY(Check(GiveBackIdle(pool_, stream_), "giving back idle memory"));
  const cudaError_t error = cudaMallocFromPoolAsync(&data, rounded, pool_, stream_);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    return Error(
        ResourceExhausted(fmt::format("CUDA device {}: could not allocate {}, {} of {} are free",
                                      options_.device, Counted(num_bytes, "byte"), free_bytes, total_bytes)));
  }
  DSV4_TRY(Check(error, "cudaMallocFromPoolAsync"));
  // Launches that wait in the list cannot know this memory: its last user was done when it was freed.
  DSV4_TRY(Check(cudaMemsetAsync(data, 0, rounded, stream_), "cudaMemsetAsync"));
  return data;
}

Result<void*> DeviceQueue::Allocate(size_t num_bytes) {
  const std::lock_guard lock(mutex_);
  return AllocateLocked(num_bytes);
}

void DeviceQueue::Free(void* data) {
  const std::lock_guard lock(mutex_);
  Spoil("memory was freed");
  const Status flushed = Flush();
  if (!flushed.ok() && refused_.ok()) refused_ = flushed;
  cudaFreeAsync(data, stream_);
}

Status DeviceQueue::CopyOnDevice(void* destination, const void* source, size_t num_bytes) {
  const std::lock_guard lock(mutex_);
  Spoil("a copy on the device");
  DSV4_RETURN_IF_ERROR(Flush());
  return Check(cudaMemcpyAsync(destination, source, num_bytes, cudaMemcpyDeviceToDevice, stream_),
               "copy on the device");
}

// As an op, so that what a step begins with belongs to its list of launches.
Status DeviceQueue::CopyFromHost(void* destination, const void* source, size_t num_bytes) {
  DSV4_CHECK(num_bytes <= kMaxStagedCopyBytes) << num_bytes << " bytes";
  DSV4_RETURN_IF_ERROR(BeginOp({"copy to the device", {Shape{static_cast<int64_t>(num_bytes)}}}));
  // The bytes of an array of the step are staged as they are.
  StagedOrigin origin = {.array = {static_cast<const std::byte*>(source), num_bytes}};
  if (recording()) {
    origin.fill = [num_bytes](const void* array, size_t count) {
      return count == 0 ? std::span<const std::byte>()
                        : std::span(static_cast<const std::byte*>(array), num_bytes);
    };
  }
  const Result<const void*> staged = Stage(source, num_bytes, origin);
  if (staged.has_value()) LaunchCopyBytes(*this, destination, *staged, num_bytes);
  {
    const std::lock_guard lock(mutex_);
    after_copy_ = true;
  }
  const Status ended = EndOp();
  return staged.has_value() ? ended : staged.error();
}

Status DeviceQueue::OnStream(std::string_view what, const std::function<Status(cudaStream_t)>& work) {
  const std::lock_guard lock(mutex_);
  Spoil("other work on the stream");
  DSV4_RETURN_IF_ERROR(Flush().WithContext(what));
  return work(stream_);
}

Status DeviceQueue::CallOnStream(std::string_view what,
                                 const std::function<cudaError_t(cudaStream_t)>& work) {
  const std::lock_guard lock(mutex_);
  Spoil("other work on the stream");
  DSV4_RETURN_IF_ERROR(Flush().WithContext(what));
  return Check(work(stream_), what);
}

Status DeviceQueue::StartWait(std::string_view what) {
  Spoil("the host waited");
  DSV4_RETURN_IF_ERROR(Flush());
  return Check(cudaMemcpyAsync(host_fault_, device_fault_, sizeof(Fault), cudaMemcpyDeviceToHost, stream_),
               what);
}

// With wait_mutex_ held, after StartWait. `lists`: handed to the device since the last wait, when this one began.
Status DeviceQueue::FinishWait(std::string_view what, uint64_t lists) {
  // Others may queue meanwhile.
  const cudaError_t error = cudaStreamSynchronize(stream_);
  const std::lock_guard lock(mutex_);
  DSV4_RETURN_IF_ERROR(Check(error, what));
  num_waited_for_ = num_recorded_;
  // Lists that another thread has handed over meanwhile may still be read.
  if (lists_since_wait_ == lists) {
    lists_since_wait_ = 0;
    if (num_open_ops_ == 0 && ListSize() == 0) {
      staging_.Rewind();
      staging_between_.Rewind();
    }
  }
  return EndWait(*host_fault_);
}

// Errors in the work that was waited for.
Status DeviceQueue::EndWait(const Fault& fault) {
  if (fault.kind != FaultKind::kNone) {
    DSV4_RETURN_IF_ERROR(
        Check(cudaMemsetAsync(device_fault_, 0, sizeof(Fault), stream_), "clearing the fault record"));
    Status described = Describe(fault);
    if (fault.kind == FaultKind::kHostExpertsFailed && host_failure_)
      described = Status(described.code(), described.message() + ": " + host_failure_());
    return described;
  }
  Status refused;
  std::swap(refused, refused_);
  return refused;
}

Status DeviceQueue::Wait(std::string_view what) {
  const std::lock_guard wait_lock(wait_mutex_);
  uint64_t lists = 0;
  {
    const std::lock_guard lock(mutex_);
    DSV4_RETURN_IF_ERROR(StartWait(what));
    lists = lists_since_wait_;
  }
  return FinishWait(what, lists);
}

LaunchCounters DeviceQueue::counters() const {
  const std::lock_guard lock(mutex_);
  LaunchCounters counters = graphs_.counters();
  counters.launches -= num_moves_;
  return counters;
}

std::string DeviceQueue::Journal() const {
  const uint64_t num_new = num_recorded_ - num_waited_for_;
  if (num_new == 0) return "no op was queued since the last wait";
  std::string text =
      fmt::format("{} queued since the last wait, the last of them:", Counted(num_new, "op was", "ops were"));
  const uint64_t count = std::min<uint64_t>(num_new, kJournalLength);
  for (uint64_t i = num_recorded_ - count; i < num_recorded_; ++i) {
    text += (i + count == num_recorded_ ? " " : ", ") + journal_[i % kJournalLength].ToString();
  }
  if (num_new > 1) text += "; DSV4_CUDA_SYNC=1 names the op at fault";
  return text;
}

}  // namespace dsv4::backend::cuda
