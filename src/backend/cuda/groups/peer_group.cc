// Group of GPUs that map each other's memory: mailboxes, rounds, deadlines, and the kernel that each exchange
// takes.
#include "backend/cuda/groups/peer_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "backend/cuda/collectives/chunked_exchange.h"
#include "backend/cuda/collectives/ll_exchange.h"
#include "backend/cuda/cuda_variables.h"
#include "backend/cuda/lowering/launch/recorded_op.h"
#include "backend/cuda/lowering/record/over_ranks.h"
#include "base/check.h"
#include "base/text.h"
#include "comm/collectives.h"
#include "comm/loopback_group.h"
#include "comm/machine.h"

namespace dsv4::backend::cuda {
namespace {

constexpr std::chrono::milliseconds kLook(20);
constexpr int64_t kMinShare = 4096;  // Bytes of a piece a block, unless there would be too many blocks.
// Up to here every rank adds up everything: one wait instead of two.
constexpr int64_t kMaxGatheredSum = int64_t{512} << 10;
static_assert(kMaxGatheredSum <= kMaxUnstreamedBytes);  // They are added up where what is sent to all lies.

Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();
  return FailedPrecondition(fmt::format("{}: {}", what, cudaGetErrorString(error)));
}

// The largest unit of the kernels' that divides all numbers.
int UnitOf(int64_t all_bits) {
  for (const int unit : {16, 8, 4}) {
    if (all_bits % unit == 0) return unit;
  }
  return 1;
}
int64_t Address(const void* data) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(data)); }

// Whether pieces of so many bytes go by LL words.
bool TakesLl(int64_t piece_bytes, int64_t num_rows) {
  const bool few_rows = num_rows > 1 && num_rows <= kMaxLlRows;
  return piece_bytes <= (few_rows ? kMaxLlRowsBytes : kMaxLlBytes);
}

// Freedom of another launch in an exchange of a few rows.
struct Fusable {
  std::optional<OpKind> kind = std::nullopt;  // kGather or kAllToAll.
  const void* mine = nullptr;
  void* all = nullptr;
};

class PeerGroup final : public comm::Communicator {
 public:
  PeerGroup(comm::Communicator& hosts, std::shared_ptr<CudaContext> context, const PeerOptions& options)
      : hosts_(hosts),
        context_(std::move(context)),
        queue_(context_->shared_queue()),
        timeout_(options.timeout),
        packed_(options.packed) {}

  ~PeerGroup() override {
    {
      const std::lock_guard lock(watch_mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    if (watcher_.joinable()) watcher_.join();
    // A rank that waits for no flag is let go; a group that ended in good order has nothing queued.
    if (words_ != nullptr) __atomic_store_n(&words_->abort, 1U, __ATOMIC_RELEASE);
    (void)queue_->OnStream("the end of a group of peers", [&](cudaStream_t stream) {
      cudaStreamSynchronize(stream);
      for (int r = 0; r < kMaxPeers; ++r) {
        if (r != rank() && !comm::IsLoopback(hosts_) && params_.mailboxes[r] != nullptr)
          cudaIpcCloseMemHandle(params_.mailboxes[r]);
      }
      return Status();
    });
    // Memory must not go while another rank has it mapped; in a group that failed the others' processes end.
    if (hosts_.Check().ok()) (void)hosts_.Barrier();
    (void)queue_->OnStream("the end of a group of peers", [&](cudaStream_t) {
      if (rank() < kMaxPeers && params_.mailboxes[rank()] != nullptr) cudaFree(params_.mailboxes[rank()]);
      if (params_.state != nullptr) cudaFree(params_.state);
      if (words_ != nullptr) cudaFreeHost(words_);
      return Status();
    });
  }

  // Maps all mailboxes. A rank that the others cannot reach says so before any relies on it.
  Status Join() {
    struct Offer {
      cudaIpcMemHandle_t handle = {};
      char device[32] = {};  // Its bus address.
      int num_sms = 0;
      bool packed = true;
    };
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<int> here, comm::RanksHere(hosts_));
    Status together;
    if (std::ssize(here) != size())
      together = FailedPrecondition(
          fmt::format("{} of {} on its machine", here.size(), Counted(size(), "rank is", "ranks are")));
    if (size() > kMaxPeers)
      together = FailedPrecondition(fmt::format("{}, want at most {}", Counted(size(), "rank"), kMaxPeers));
    DSV4_RETURN_IF_ERROR(comm::Agree(hosts_, together));
    Offer mine;
    mine.packed = packed_;
    mine.num_sms = queue_->num_sms();
    Status status = queue_->OnStream("memory of a group of peers", [&](cudaStream_t) {
      std::byte*& mailbox = params_.mailboxes[rank()];
      DSV4_RETURN_IF_ERROR(
          ToStatus(cudaMalloc(reinterpret_cast<void**>(&mailbox), kMailboxBytes), "cudaMalloc"));
      DSV4_RETURN_IF_ERROR(ToStatus(cudaMemset(mailbox, 0, kMailboxBytes), "cudaMemset"));
      DSV4_RETURN_IF_ERROR(ToStatus(
          cudaMalloc(reinterpret_cast<void**>(&params_.state), sizeof(ExchangeState)), "cudaMalloc"));
      DSV4_RETURN_IF_ERROR(ToStatus(cudaMemset(params_.state, 0, sizeof(ExchangeState)), "cudaMemset"));
      DSV4_RETURN_IF_ERROR(ToStatus(
          cudaHostAlloc(reinterpret_cast<void**>(&words_), sizeof(ExchangeWords), cudaHostAllocMapped),
          "cudaHostAlloc"));
      *words_ = {};
      params_.words = words_;
      DSV4_RETURN_IF_ERROR(ToStatus(cudaIpcGetMemHandle(&mine.handle, mailbox), "cudaIpcGetMemHandle"));
      DSV4_RETURN_IF_ERROR(
          ToStatus(cudaDeviceGetPCIBusId(mine.device, sizeof(mine.device), queue_->device().index),
                   "cudaDeviceGetPCIBusId"));
      // The memsets are done before any rank writes.
      return ToStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    });
    DSV4_RETURN_IF_ERROR(comm::Agree(hosts_, status));
    std::vector<Offer> offers(static_cast<size_t>(size()));
    const std::vector<int64_t> sizes(offers.size(), sizeof(Offer));
    DSV4_RETURN_IF_ERROR(hosts_.AllGather(std::as_bytes(std::span(&mine, 1)), 1, sizes,
                                          std::as_writable_bytes(std::span(offers))));
    status = queue_->OnStream("mapping the memory of peers", [&](cudaStream_t) {
      for (int r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        if (comm::IsLoopback(hosts_)) {
          // Memory of rank r here is mapped as this rank's memory there.
          params_.mailboxes[r] = params_.mailboxes[rank()] + (r - rank()) * kSourceBytes;
          continue;
        }
        const Offer& offer = offers[static_cast<size_t>(r)];
        if (std::string_view(offer.device) == mine.device && !DevicesAreShared())
          return FailedPrecondition(fmt::format("rank {} has the same device, {}", r, offer.device));
        DSV4_RETURN_IF_ERROR(ToStatus(cudaIpcOpenMemHandle(reinterpret_cast<void**>(&params_.mailboxes[r]),
                                                           offer.handle, cudaIpcMemLazyEnablePeerAccess),
                                      "cudaIpcOpenMemHandle")
                                 .WithContext(fmt::format("memory of rank {} on {}", r, offer.device)));
      }
      return Status();
    });
    DSV4_RETURN_IF_ERROR(comm::Agree(hosts_, status));
    packed_ = std::ranges::all_of(offers, [](const Offer& offer) { return offer.packed; });
    for (const Offer& offer : offers) stream_blocks_ = std::min(stream_blocks_, offer.num_sms);
    params_.rank = rank();
    params_.size = size();
    params_.deadline_ns = std::chrono::nanoseconds(timeout_).count();
    watcher_ = std::thread([this] { Watch(); });
    return {};
  }

  int rank() const override { return hosts_.rank(); }
  int size() const override { return hosts_.size(); }

  Status Barrier(comm::Wait wait) override { return hosts_.Barrier(wait); }
  Status Broadcast(std::span<std::byte> data, int root, comm::Wait wait) override {
    DSV4_CHECK(0 <= root && root < size()) << root;
    DSV4_CHECK(wait == comm::Wait::kDeadline) << "a device waits within the deadline only";
    std::vector<int64_t> row_bytes(At(size()));
    row_bytes[At(root)] = static_cast<int64_t>(data.size());
    return AllGather(rank() == root ? std::span<const std::byte>(data) : std::span<const std::byte>(), 1,
                     row_bytes, data);
  }
  Status AllGather(std::span<const std::byte> mine, int64_t num_rows, std::span<const int64_t> row_bytes,
                   std::span<std::byte> all) override {
    const int64_t all_row_bytes = Total(row_bytes);
    DSV4_CHECK(static_cast<int64_t>(all.size()) == all_row_bytes * num_rows) << all.size();
    ExchangeParams p = params_;
    p.num_rows = num_rows;
    int64_t begin = 0;
    for (int r = 0; r < size(); ++r) {
      const int64_t bytes = row_bytes[At(r)];
      p.send[r] = {const_cast<std::byte*>(mine.data()), row_bytes[At(rank())], row_bytes[At(rank())]};
      p.receive[r] = {all.data() + begin, all_row_bytes, bytes};
      begin += bytes;
    }
    return Launch("all-gather", p, row_bytes, {OpKind::kGather, mine.data(), all.data()});
  }
  Status AllToAll(std::span<const std::byte> mine, int64_t num_rows, std::span<const int64_t> row_bytes,
                  std::span<std::byte> parts) override {
    const int64_t all_row_bytes = Total(row_bytes);
    const int64_t my_bytes = row_bytes[At(rank())];
    DSV4_CHECK(static_cast<int64_t>(parts.size()) == size() * my_bytes * num_rows) << parts.size();
    ExchangeParams p = params_;
    p.num_rows = num_rows;
    int64_t begin = 0;
    for (int r = 0; r < size(); ++r) {
      const int64_t bytes = row_bytes[At(r)];
      p.send[r] = {const_cast<std::byte*>(mine.data()) + begin, all_row_bytes, bytes};
      p.receive[r] = {parts.data() + r * my_bytes * num_rows, my_bytes, my_bytes};
      begin += bytes;
    }
    return Launch("all-to-all", p, row_bytes, {OpKind::kAllToAll, mine.data(), parts.data()});
  }
  Status AllReduceSum(std::span<float> values) override {
    const auto bytes = static_cast<int64_t>(values.size_bytes());
    auto* const data = reinterpret_cast<std::byte*>(values.data());
    if (packed_ && bytes > 0 && bytes <= kMaxLlSumBytes) return SumByLl(values);
    if (bytes <= kMaxGatheredSum) {
      ExchangeParams p = params_;
      p.num_rows = 1;
      for (int r = 0; r < size(); ++r) p.send[r] = {data, bytes, bytes};
      p.sum = values.data();
      return Launch("all-reduce", p, std::vector<int64_t>(At(size()), bytes));
    }
    // Every rank adds up a piece, and all get the pieces.
    std::vector<int64_t> counts;
    const auto count = static_cast<int64_t>(values.size());
    constexpr int64_t kUnit = 4;  // Floats that are moved at once.
    for (int64_t r = 0; r < size(); ++r) {
      const int64_t end = r + 1 == size() ? count : count * (r + 1) / size() / kUnit * kUnit;
      counts.push_back(end - std::accumulate(counts.begin(), counts.end(), int64_t{0}));
    }
    const int64_t begin = std::accumulate(counts.begin(), counts.begin() + rank(), int64_t{0});
    const std::span<float> mine =
        values.subspan(static_cast<size_t>(begin), static_cast<size_t>(counts[At(rank())]));
    DSV4_RETURN_IF_ERROR(ReduceScatterSum(values, counts, mine));
    std::vector<int64_t> piece_bytes;
    for (const int64_t piece : counts) piece_bytes.push_back(piece * static_cast<int64_t>(sizeof(float)));
    return AllGather(std::as_bytes(mine), 1, piece_bytes, std::as_writable_bytes(values));
  }
  // `mine` may be its part of `values`.
  Status ReduceScatterSum(std::span<const float> values, std::span<const int64_t> counts,
                          std::span<float> mine) override {
    DSV4_CHECK(static_cast<int64_t>(values.size()) == Total(counts)) << values.size();
    DSV4_CHECK(static_cast<int64_t>(mine.size()) == counts[At(rank())]) << mine.size();
    ExchangeParams p = params_;
    p.num_rows = 1;
    auto* data = reinterpret_cast<std::byte*>(const_cast<float*>(values.data()));
    std::vector<int64_t> piece_bytes;
    for (int r = 0; r < size(); ++r) {
      piece_bytes.push_back(counts[At(r)] * static_cast<int64_t>(sizeof(float)));
      p.send[r] = {data, piece_bytes.back(), piece_bytes.back()};
      data += piece_bytes.back();
    }
    p.sum = mine.data();
    return Launch("reduce-scatter", p, piece_bytes);
  }
  Status Send(std::span<const std::byte>, int) override { return DoesNotSend(); }
  Status Recv(std::span<std::byte>, int) override { return DoesNotSend(); }
  Status Check() override {
    FailIfLate();
    return hosts_.Check();
  }
  void Fail(const Status& why) override { hosts_.Fail(why); }
  // Parts go the way of the whole: their hosts first.
  Result<std::unique_ptr<comm::Communicator>> Split(int) override {
    return Error(Unimplemented("a group of peers: make the parts of the hosts' parts"));
  }

 private:
  static size_t At(int r) { return static_cast<size_t>(r); }
  static Status DoesNotSend() {
    return Unimplemented("a group of peers: exchanges only; want one that sends (CudaGroupOptions::sends)");
  }

  int64_t Total(std::span<const int64_t> counts) const {
    DSV4_CHECK(static_cast<int>(counts.size()) == size()) << counts.size() << " of " << size();
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }

  // `row_bytes`: of what every rank gets or gives, p.num_rows rows; ranks decide by it, and alike.
  // `fusable`: it may be part of other launches.
  Status Launch(const char* name, ExchangeParams p, std::span<const int64_t> row_bytes,
                const Fusable& fusable = {}) {
    if (ended_.load(std::memory_order_relaxed)) return Check();
    const int64_t most = *std::ranges::max_element(row_bytes) * p.num_rows;
    if (most == 0) return {};
    int64_t bits = p.sum == nullptr ? 0 : Address(p.sum);
    for (int r = 0; r < size(); ++r) {
      for (const ExchangePiece& piece : {p.send[r], p.receive[r]})
        bits |= Address(piece.data) | piece.stride | piece.row_bytes;
    }
    const int unit = UnitOf(bits);
    const bool packed =
        packed_ && TakesLl(most, p.num_rows) && p.sum == nullptr &&
        std::ranges::all_of(row_bytes, [](int64_t bytes) { return bytes > 0 && bytes % 8 == 0; });
    DSV4_RETURN_IF_ERROR(queue_->BeginOp({name, {Shape{p.num_rows, most}}}));
    // Blocks are as many on all ranks: each waits for its namesakes.
    if (most > kMaxUnstreamedBytes) {
      queue_->Launch(StreamKernelFor(unit, p.sum != nullptr), dim3(static_cast<unsigned>(stream_blocks_)),
                     dim3(kChunkedExchangeThreads), 0, PlanStream(p, most, stream_blocks_));
      return queue_->EndOp();
    }
    p.share = std::max(kMinShare, (most + kMaxExchangeBlocks - 1) / kMaxExchangeBlocks);
    p.share = (p.share + 15) / 16 * 16;
    const ExchangeWork work = {
        .params = p,
        .kernel = packed ? LlKernelFor(unit) : ExchangeKernelFor(unit, p.sum != nullptr),
        .blocks = static_cast<unsigned>((most + p.share - 1) / p.share),
        .mine = fusable.mine,
        .all = fusable.all,
        .piece_bytes = row_bytes[0]};
    const bool even = std::ranges::all_of(row_bytes, [&](int64_t bytes) { return bytes == row_bytes[0]; });
    const bool may_fuse = packed && p.num_rows <= kMaxLlRows && even;
    if (may_fuse && fusable.kind == OpKind::kGather) {
      RecordGather(*context_, work);
    } else if (!may_fuse || fusable.kind != OpKind::kAllToAll || !FuseAllToAll(*context_, work)) {
      queue_->Launch(work.kernel, dim3(work.blocks), dim3(kExchangeThreads), 0, p);
    }
    return queue_->EndOp();
  }

  // By one launch, which also adds what would have been added in front of it, and which the op that reads the
  // sum may fuse.
  Status SumByLl(std::span<float> values) {
    if (ended_.load(std::memory_order_relaxed)) return Check();
    const auto count = static_cast<int64_t>(values.size());
    DSV4_RETURN_IF_ERROR(queue_->BeginOp({"all-reduce", {Shape{count}}}));
    RecordRankSum(*context_, params_, values.data(), count);
    return queue_->EndOp();
  }

  // A device that has waited too long gives what it has from then on: none may take that for an answer.
  void FailIfLate() {
    const uint32_t late = __atomic_load_n(&words_->late, __ATOMIC_ACQUIRE);
    if (late == 0) return;
    hosts_.Fail({StatusCode::kDeadlineExceeded,
                 fmt::format("the device of rank {} was not there within {} s", late - 1,
                             static_cast<double>(timeout_.count()) / 1000.0)});
  }

  void Watch() {
    std::unique_lock lock(watch_mutex_);
    while (!wake_.wait_for(lock, kLook, [&] { return stop_; })) {
      FailIfLate();
      if (hosts_.Check().ok()) continue;
      ended_.store(true, std::memory_order_relaxed);
      __atomic_store_n(&words_->abort, 1U, __ATOMIC_RELEASE);
      return;
    }
  }

  comm::Communicator& hosts_;
  std::shared_ptr<CudaContext> context_;
  std::shared_ptr<DeviceQueue> queue_;
  const std::chrono::milliseconds timeout_;
  bool packed_;
  ExchangeParams params_;  // Parameters of all exchanges.
  ExchangeWords* words_ = nullptr;
  int stream_blocks_ = kMaxExchangeBlocks;  // As many as all devices run at once.

  std::mutex watch_mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::atomic<bool> ended_ = false;  // Seen by the watcher. To ask the hosts' group takes a system call.
  std::thread watcher_;
};

}  // namespace

Result<std::unique_ptr<comm::Communicator>> JoinPeers(comm::Communicator& hosts,
                                                      std::shared_ptr<CudaContext> context,
                                                      const PeerOptions& options) {
  auto group = std::make_unique<PeerGroup>(hosts, std::move(context), options);
  DSV4_TRY(group->Join());
  return group;
}

}  // namespace dsv4::backend::cuda
