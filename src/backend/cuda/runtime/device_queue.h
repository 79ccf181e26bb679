// DeviceQueue: one stream of one device with everything that can go wrong on it.
//
// Launches are collected and handed to the device some hundred at a time, or when a caller wants their
// results. A list of launches that comes again runs as a CUDA graph (graph_cache.h). Small host arrays travel
// along (staging.h). Everything else that is queued on the stream hands over what was collected first, so
// that order is never lost.
//
// CUDA reports late: a launch that reads wild memory fails the call that next waits. The queue therefore keeps a journal of
// the ops since it last waited, and every error that arrives asynchronously is told with it. A context that CUDA has given
// up ("sticky" errors) refuses further work with the first error's text.
//
// Kernels report wrong *data* (an id outside its table) through a fault record. The first fault wins, is read
// when the queue waits, and becomes the Status that the contract asks for.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "backend/cuda/device/sync/fault.h"
#include "backend/cuda/runtime/graph_cache.h"
#include "backend/cuda/runtime/launch_list.h"
#include "backend/cuda/runtime/pinned_blocks.h"
#include "backend/cuda/runtime/staging.h"
#include "ops/step_replay.h"
#include "tensor/tensor.h"

namespace dsv4::backend::cuda {

// An op as the journal remembers it.
struct OpRecord {
  const char* name = "";
  std::array<Shape, 3> shapes;  // Shapes of rank 0 are left out.
  std::string ToString() const;
};

// Work that ops have recorded and not launched yet, because a later op may become part of it
// (lowering/lowering.h). It is launched in front of everything else, and before a list goes to the device.
class PendingLaunches {
 public:
  virtual ~PendingLaunches() = default;
  virtual size_t num_launches() const = 0;  // At most; 0 where there are none.
  // Adds them to the queue; then nothing is pending.
  virtual Status Launch() = 0;
};

// Sees what is handed to the device at once: launches (LaunchList::bytes), and the staged bytes that they bring first.
using WatchLists =
    std::function<void(std::span<const std::byte> launches, std::span<const std::byte> staged)>;

struct QueueOptions {
  int device = 0;
  bool synchronous = false;    // Every op waits for itself.
  bool graphs = true;          // Lists of launches that come again run as graphs.
  bool overlap = false;        // Kernels may start before the one in front of them has ended.
  bool check_replays = false;  // Steps that would be replayed are walked, and both are compared byte by byte.
  size_t most_shared_bytes = 0;  // Limit of a block's shared memory, if the device has more; 0: what it has.
  WatchLists watch = {};         // For tests.
};

class StepRecords;

// How the bytes of a staged array follow from an array of the step (ops/step_replay.h), borrowed until the
// next call. A number that steers launches follows in the same way. Both are functions of the array alone:
// all else that they know is the same in all steps of a key.
using StagedFill = std::function<std::span<const std::byte>(const void* array, size_t count)>;
using StagedNumber = std::function<int64_t(const void* array, size_t count)>;
// kInSteps: an array that grows with the context, with room for some more, so that the arrays behind it stay where they are.
enum class StagedGrowth : uint8_t { kNone, kInSteps };
struct StagedOrigin {
  std::span<const std::byte> array = {};  // All of it; empty with null data: the bytes are those of no array.
  StagedGrowth growth = StagedGrowth::kNone;
  StagedFill fill = {};
};

// Thread-safe: a mutex guards everything, and ops of several threads are queued one after the other, launch by launch.
class DeviceQueue : public std::enable_shared_from_this<DeviceQueue> {
 public:
  static constexpr size_t kMaxStagedCopyBytes = size_t{16} << 10;

  static Result<std::shared_ptr<DeviceQueue>> Create(const QueueOptions& options);
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  Device device() const { return {DeviceType::kCuda, options_.device}; }
  cudaStream_t stream() const { return stream_; }
  int num_sms() const { return num_sms_; }
  int compute_capability() const { return compute_capability_; }  // 90 is 9.0.
  int code_capability() const { return code_capability_; }        // DeviceLimits.
  size_t shared_bytes() const { return shared_bytes_; }           // Shared memory that a block may have.
  // Record in which kernels report wrong data; device memory.
  Fault* fault() const { return device_fault_; }

  // Null: there are none. Not owned.
  void SetPending(PendingLaunches* pending);
  // Adds them now: what is launched next comes behind them.
  void LaunchPending();
  // While it lives, no other thread queues anything.
  std::unique_lock<std::recursive_mutex> Lock() const { return std::unique_lock(mutex_); }

  // Details for FaultKind::kHostExpertsFailed; thread-safe.
  void DescribeHostFaults(std::function<std::string()> failure) {
    const std::lock_guard lock(mutex_);
    host_failure_ = std::move(failure);
  }

  // Arrays of ops from now on are staged apart from those of steps, which find theirs where they lay, until it is set back.
  Status SetBetweenSteps(bool between);

  // An op begins: Ok, or what broke the device. Every BeginOp that returns Ok is followed by an EndOp.
  Status BeginOp(const OpRecord& record);
  // Adds a launch of the op. Refusals are reported by EndOp or a later call.
  template <typename... Params, typename... Args>
  void Launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes, const Args&... args) {
    static_assert(sizeof...(Params) == sizeof...(Args));
    PassArguments<Params...>(
        [&](std::span<const LaunchArgument> arguments) {
          AddLaunch(reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, arguments);
        },
        args...);
  }
  void AddLaunch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes,
                 std::span<const LaunchArgument> arguments);
  // How many of the kernel's clusters, which may be of up to 16 blocks, the device has room for at once; and whether for one.
  int MostClusters(const void* kernel, unsigned blocks, unsigned threads, size_t shared_bytes);
  bool HasCluster(const void* kernel, unsigned blocks, unsigned threads, size_t shared_bytes) {
    return MostClusters(kernel, blocks, threads, shared_bytes) > 0;
  }
  // Whether so many blocks of the kernel run at the same time when nothing else does, so that they may wait for each other.
  bool RunsAtOnce(const void* kernel, unsigned blocks, unsigned threads, size_t shared_bytes);
  // A device copy of a host array, for launches of the op that is open; the source is free at return. A step that stages an array without
  // origin leaves no record.
  Result<const void*> Stage(const void* source, size_t num_bytes, const StagedOrigin& origin = {});
  // While a step is recorded: launches depend on this number of the step's array.
  void NoteNumber(std::span<const std::byte> array, StagedNumber number, int64_t value);
  // The same: launches know this memory, which must stay.
  void Keep(const Buffer& buffer);
  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  Status EndOp();

  // Memory in stream order, zeroed. The error is cudaErrorMemoryAllocation's, which is not noted as one of the device.
  Result<void*> Allocate(size_t num_bytes);
  void Free(void* data);
  Status CopyOnDevice(void* destination, const void* source, size_t num_bytes);
  // At most kMaxStagedCopyBytes, with the launches around it; the source is free at return.
  Status CopyFromHost(void* destination, const void* source, size_t num_bytes);
  // Waits for it, and reports faults and errors of everything before. Fastest into memory of AllocateOnHost.
  Status CopyToHost(void* destination, const void* source, size_t num_bytes);
  // The same without waiting, into memory of AllocateOnHost; the device goes on meanwhile. One step of a
  // model ends with one. Staging memory is then given out from the beginning of its other half, and
  // neighbouring steps find their arrays in turns.
  Result<std::unique_ptr<PendingCopy>> StartCopyToHost(void* destination, const void* source,
                                                       size_t num_bytes);
  // Whether ops return before they are done.
  bool asynchronous() const { return !options_.synchronous; }
  // Pinned where it is of a size that comes often (PinnedBlocks).
  Result<Buffer> AllocateOnHost(size_t num_bytes);

  // Calls `work` with the device current, what was collected on the stream, and nothing else on its way there.
  Status OnStream(std::string_view what, const std::function<Status(cudaStream_t)>& work);
  // The same, where only a CUDA call can go wrong.
  Status CallOnStream(std::string_view what, const std::function<cudaError_t(cudaStream_t)>& work);

  LaunchCounters counters() const;

  // ops::StepReplayer. `scratch`: the memory that ops use beside their arguments, if all of it is one
  // allocation; null: no record.
  Result<std::unique_ptr<PendingCopy>> Replay(std::string_view key, const ops::StepReplayer::End& end,
                                              const void* scratch,
                                              const std::function<void(ops::StepArrays&)>& pass);
  void BeginRecording(std::string_view key, std::shared_ptr<ops::StepArrays> arrays);
  void EndRecording(bool queued, const void* scratch);
  ops::ReplayCounters replay_counters() const;
  // Drops records when something that launches know has changed or gone (weights, their tables): steps are
  // walked again. Also before the memory that records keep goes.
  void DropRecords();

 private:
  class QueuedCopy;

  explicit DeviceQueue(const QueueOptions& options);
  // These want mutex_ held, except in Create.
  Status Check(cudaError_t error, std::string_view what);
  Status Enter();
  size_t NumPending() const {
    return pending_ == nullptr || launches_pending_ ? 0 : pending_->num_launches();
  }
  // With what is pending.
  size_t ListSize() const { return list_.size() + NumPending(); }
  void BeginLaunch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes);
  Result<void*> AllocateLocked(size_t num_bytes);
  Status Flush();
  Status StartWait(std::string_view what);
  Status EndWait(const Fault& fault);
  cudaError_t TakeEvent(cudaEvent_t* event);
  std::string Journal() const;
  Status FlushOfOp();
  // Handle of queued work that ended with a copy to the host.
  Result<std::unique_ptr<PendingCopy>> CopyStarted(Buffer fault);
  // Something is queued that no record can hold, or by another thread.
  void Spoil(const char* why);
  const char* OpenOpName() const {
    return num_open_ops_ > 0 ? journal_[(num_recorded_ - 1) % kJournalLength].name : "no op";
  }
  void SpoilIfForeign();
  void NoteStaged(size_t offset, size_t num_bytes, const StagedOrigin& origin);
  void NoteEnd(const ops::StepReplayer::End& end, const void* fault);
  void NoteList(size_t num_staged_bytes, std::shared_ptr<const CudaGraph> graph);
  // Behind NoteEnd: where the walk and the forecast part, if there is one.
  Status CheckForecast();
  // How soon lists are handed over.
  uint64_t ListGrowth() const { return std::min<uint64_t>(lists_since_wait_, 6); }
  // These do not.
  Status Wait(std::string_view what);
  // With wait_mutex_ held; both waits for everything.
  Status WriteToHost(void* destination, const void* source, size_t num_bytes);
  Status TransferToHost(void* destination, const void* source, size_t num_bytes);
  Status FinishWait(std::string_view what, uint64_t lists);

  // The most launches that the device is kept waiting for. They are half a layer where it has nothing to do,
  // since a caller has just waited for it. Then they are as many as the host has made by the time the device
  // has done those before.
  static constexpr size_t kFirstListLaunches = 8;
  static constexpr size_t kMaxListLaunches = 320;
  size_t MaxListLaunches() const { return std::min(kMaxListLaunches, kFirstListLaunches << ListGrowth()); }
  // Up to so many bytes a kernel at the list's end writes to the host; more are worth TMA.
  static constexpr size_t kMaxWrittenBytes = size_t{1} << 20;
  static constexpr size_t kJournalLength = 8;

  // Number of blocks at once with so much shared memory.
  struct BlocksAtOnce {
    size_t shared_bytes = 0;
    unsigned blocks = 0;
  };

  const QueueOptions options_;
  int num_sms_ = 0;
  int compute_capability_ = 0;
  int code_capability_ = 0;
  size_t shared_bytes_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaMemPool_t pool_ = nullptr;
  Fault* device_fault_ = nullptr;
  Fault* host_fault_ = nullptr;  // Pinned.
  const std::shared_ptr<PinnedBlocks> pinned_;
  Buffer landing_;  // Buffer to which bytes for memory that is not pinned are written first.

  std::mutex wait_mutex_;  // One reader of host_fault_ and landing_ at a time. Taken before mutex_.
  mutable std::recursive_mutex mutex_;
  Status broken_;
  std::array<OpRecord, kJournalLength> journal_;
  uint64_t num_recorded_ = 0;    // Ever,
  uint64_t num_waited_for_ = 0;  // and how many of them were waited for.
  int num_open_ops_ = 0;

  std::function<std::string()> host_failure_;
  PendingLaunches* pending_ = nullptr;
  bool launches_pending_ = false;  // Just now.
  LaunchList list_;
  uint64_t num_launches_ = 0;       // Ever.
  int64_t num_moves_ = 0;           // Launches between host and staging memory, which counters() leaves out.
  uint64_t lists_since_wait_ = 0;   // Lists that were handed to the device.
  std::vector<OpRecord> list_ops_;  // Ops with launches in list_,
  std::vector<size_t> launches_before_;  // and how many launches were in front of each.
  Status refused_;                       // Error of the list, until a caller has been told.
  bool after_copy_ = false;  // The launch before was a copy, whose bytes the next one may read at once.
  GraphCache graphs_;
  Staging staging_;
  Staging staging_between_;                                // For ops between steps.
  Staging* staged_ = &staging_;                            // Which of both holds what is queued now.
  std::vector<void*> large_arrays_;                        // Staged arrays with memory of their own.
  std::unordered_map<const void*, size_t> shared_limits_;  // By kernel.
  std::unordered_map<const void*, int> most_clusters_;     // The same.
  std::unordered_map<const void*, BlocksAtOnce> blocks_at_once_;
  std::vector<cudaEvent_t> events_;  // Events that no copy uses.
  std::shared_ptr<StepRecords> records_;
  std::atomic<bool> recording_ = false;
};

}  // namespace dsv4::backend::cuda
