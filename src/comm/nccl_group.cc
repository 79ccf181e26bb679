// Device group over NCCL: bytes gathered and added here in rank order, with a thread that aborts late
// exchanges.
#include "comm/nccl_group.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "base/check.h"
#include "comm/collectives.h"
#include "comm/waiting.h"

namespace dsv4::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLongestLook(
    500);  // As in shared memory: a stopped rank blames no other.
// Looks at a call in flight are at first many: most calls are done in microseconds.
constexpr std::chrono::microseconds kImpatient(100);
// Exchanges on the stream at a time. A stream takes about a thousand launches before a launch waits for room,
// where it must not wait for a rank that is gone.
constexpr uint64_t kMostQueued = 64;
// Up to here every rank adds up everything: one exchange instead of two.
constexpr int64_t kMaxGatheredSum = 16384;

std::byte* Bytes(float* values) { return reinterpret_cast<std::byte*>(values); }
const std::byte* Bytes(const float* values) { return reinterpret_cast<const std::byte*>(values); }
int64_t FloatBytes(int64_t count) { return count * static_cast<int64_t>(sizeof(float)); }

class NcclGroup final : public Communicator {
 public:
  NcclGroup(Communicator& hosts, DeviceStream& device, NcclLibrary nccl, const NcclOptions& options,
            std::shared_ptr<void> keeps = nullptr)
      : keeps_(std::move(keeps)), hosts_(hosts), device_(device), nccl_(std::move(nccl)), options_(options) {}

  ~NcclGroup() override {
    {
      const std::lock_guard lock(watch_mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    if (watcher_.joinable()) watcher_.join();
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return;
    // Finalize waits for what is queued, so only a group that is whole does.
    if (hosts_.Check().ok() && Settle("ncclCommFinalize", nccl_.finalize(comm_), options_.timeout).ok()) {
      nccl_.destroy(comm_);
    } else {
      nccl_.abort(comm_);
    }
  }

  // A part's hosts are its own.
  void Own(std::unique_ptr<Communicator> hosts) { own_hosts_ = std::move(hosts); }

  Status Join() {
    NcclUniqueId id;
    Status status;
    if (rank() == 0) status = Describe("ncclGetUniqueId", nccl_.get_unique_id(&id));
    DSV4_RETURN_IF_ERROR(Agree(hosts_, status));
    DSV4_RETURN_IF_ERROR(hosts_.Broadcast(std::as_writable_bytes(std::span(id.bytes)), 0));
    status = device_.Queue("making an NCCL group", [&](void*) {
      const std::lock_guard lock(mutex_);
      NcclConfig config;
      const int result = nccl_.init_rank(&comm_, size(), id, rank(), &config);
      return Settle("ncclCommInitRankConfig", result, options_.set_up_timeout);
    });
    if (!status.ok()) {
      Abort();
      hosts_.Fail(status);
      return hosts_.Check();
    }
    // A rank that is through may begin only when all are: the others might still fail.
    DSV4_RETURN_IF_ERROR(hosts_.Barrier());
    watcher_ = std::thread([this] { Watch(); });
    return {};
  }

  int rank() const override { return hosts_.rank(); }
  int size() const override { return hosts_.size(); }

  Status Barrier(Wait wait) override { return hosts_.Barrier(wait); }

  Status Broadcast(std::span<std::byte> data, int root, Wait wait) override {
    DSV4_CHECK(0 <= root && root < size()) << root;
    DSV4_CHECK(wait == Wait::kDeadline) << "a device waits within the deadline only";
    if (data.empty()) return Check();
    return Exchange("ncclBroadcast", [&](void* stream) {
      return Done("ncclBroadcast",
                  nccl_.broadcast(data.data(), data.data(), data.size(), kNcclBytes, root, comm_, stream));
    });
  }

  Status AllGather(std::span<const std::byte> mine, int64_t num_rows, std::span<const int64_t> row_bytes,
                   std::span<std::byte> all) override {
    const std::vector<int64_t> begins = Begins(row_bytes);
    const int64_t all_row_bytes = begins.back();
    DSV4_CHECK(static_cast<int64_t>(all.size()) == all_row_bytes * num_rows)
        << all.size() << " of " << all_row_bytes * num_rows;
    DSV4_CHECK(static_cast<int64_t>(mine.size()) == row_bytes[Me()] * num_rows) << mine.size();
    if (all.empty()) return Check();
    // Ranks' matrices, one behind the other; with one row that is the result.
    std::byte* gathered = all.data();
    if (num_rows > 1) {
      DSV4_ASSIGN_OR_RETURN_STATUS(gathered, device_.Scratch(all.size()));
    }
    const bool even = std::ranges::all_of(row_bytes, [&](int64_t bytes) { return bytes == row_bytes[0]; });
    return Exchange("all-gather", [&](void* stream) {
      if (even) {
        DSV4_RETURN_IF_ERROR(Done("ncclAllGather", nccl_.all_gather(mine.data(), gathered, mine.size(),
                                                                    kNcclBytes, comm_, stream)));
      } else {
        DSV4_RETURN_IF_ERROR(device_.CopyRows(gathered + begins[Me()] * num_rows, 0, mine.data(), 0,
                                              static_cast<int64_t>(mine.size()), 1));
        DSV4_RETURN_IF_ERROR(Together(stream, [&](int r) {
          return Pair{.send = mine,
                      .receive = {gathered + begins[At(r)] * num_rows,
                                  static_cast<size_t>(row_bytes[At(r)] * num_rows)}};
        }));
      }
      for (int r = 0; num_rows > 1 && r < size(); ++r) {
        DSV4_RETURN_IF_ERROR(device_.CopyRows(all.data() + begins[At(r)], all_row_bytes,
                                              gathered + begins[At(r)] * num_rows, row_bytes[At(r)],
                                              row_bytes[At(r)], num_rows));
      }
      return Status();
    });
  }

  Status AllToAll(std::span<const std::byte> mine, int64_t num_rows, std::span<const int64_t> row_bytes,
                  std::span<std::byte> parts) override {
    const std::vector<int64_t> begins = Begins(row_bytes);
    const int64_t all_row_bytes = begins.back();
    const int64_t my_bytes = row_bytes[Me()] * num_rows;
    DSV4_CHECK(static_cast<int64_t>(mine.size()) == all_row_bytes * num_rows)
        << mine.size() << " of " << all_row_bytes * num_rows;
    DSV4_CHECK(static_cast<int64_t>(parts.size()) == size() * my_bytes) << parts.size();
    if (mine.empty()) return Check();
    // Every rank's columns, one behind the other.
    const std::byte* packed = mine.data();
    std::byte* scratch = nullptr;
    if (num_rows > 1) {
      DSV4_ASSIGN_OR_RETURN_STATUS(scratch, device_.Scratch(mine.size()));
      packed = scratch;
    }
    return Exchange("all-to-all", [&](void* stream) {
      for (int r = 0; num_rows > 1 && r < size(); ++r) {
        DSV4_RETURN_IF_ERROR(device_.CopyRows(scratch + begins[At(r)] * num_rows, row_bytes[At(r)],
                                              mine.data() + begins[At(r)], all_row_bytes, row_bytes[At(r)],
                                              num_rows));
      }
      DSV4_RETURN_IF_ERROR(device_.CopyRows(parts.data() + rank() * my_bytes, 0,
                                            packed + begins[Me()] * num_rows, 0, my_bytes, 1));
      return Together(stream, [&](int r) {
        return Pair{
            .send = {packed + begins[At(r)] * num_rows, static_cast<size_t>(row_bytes[At(r)] * num_rows)},
            .receive = {parts.data() + r * my_bytes, static_cast<size_t>(my_bytes)}};
      });
    });
  }

  Status AllReduceSum(std::span<float> values) override {
    const auto count = static_cast<int64_t>(values.size());
    if (count == 0) return Check();
    if (count <= kMaxGatheredSum) {
      DSV4_ASSIGN_OR_RETURN_STATUS(std::byte* const all,
                                   device_.Scratch(static_cast<size_t>(FloatBytes(size() * count))));
      return Exchange("all-reduce", [&](void* stream) {
        DSV4_RETURN_IF_ERROR(Done("ncclAllGather", nccl_.all_gather(values.data(), all, values.size_bytes(),
                                                                    kNcclBytes, comm_, stream)));
        return device_.SumParts(reinterpret_cast<const float*>(all), size(), count, values.data());
      });
    }
    // Every rank adds up a piece, and all get the pieces.
    std::vector<int64_t> counts;
    for (int64_t r = 0; r < size(); ++r) counts.push_back(count * (r + 1) / size() - count * r / size());
    const std::vector<int64_t> begins = Begins(counts);
    const std::span<float> piece =
        values.subspan(static_cast<size_t>(begins[Me()]), static_cast<size_t>(counts[Me()]));
    DSV4_ASSIGN_OR_RETURN_STATUS(std::byte* const parts,
                                 device_.Scratch(static_cast<size_t>(size()) * piece.size_bytes()));
    return Exchange("all-reduce", [&](void* stream) {
      DSV4_RETURN_IF_ERROR(SumPiece(stream, values, counts, begins, parts, piece));
      return Together(stream, [&](int r) {
        return Pair{.send = std::as_bytes(piece),
                    .receive = {Bytes(values.data() + begins[At(r)]),
                                static_cast<size_t>(FloatBytes(counts[At(r)]))}};
      });
    });
  }

  Status ReduceScatterSum(std::span<const float> values, std::span<const int64_t> counts,
                          std::span<float> mine) override {
    const std::vector<int64_t> begins = Begins(counts);
    DSV4_CHECK(static_cast<int64_t>(values.size()) == begins.back())
        << values.size() << " of " << begins.back();
    DSV4_CHECK(static_cast<int64_t>(mine.size()) == counts[Me()]) << mine.size();
    if (values.empty()) return Check();
    DSV4_ASSIGN_OR_RETURN_STATUS(std::byte* const parts,
                                 device_.Scratch(static_cast<size_t>(size()) * mine.size_bytes()));
    return Exchange("reduce-scatter",
                    [&](void* stream) { return SumPiece(stream, values, counts, begins, parts, mine); });
  }

  Status Send(std::span<const std::byte> data, int to) override {
    DSV4_CHECK(0 <= to && to < size() && to != rank()) << to;
    if (data.empty()) return Check();
    return Exchange("ncclSend", [&](void* stream) {
      return Done("ncclSend", nccl_.send(data.data(), data.size(), kNcclBytes, to, comm_, stream));
    });
  }
  Status Recv(std::span<std::byte> data, int from) override {
    DSV4_CHECK(0 <= from && from < size() && from != rank()) << from;
    if (data.empty()) return Check();
    return Exchange("ncclRecv", [&](void* stream) {
      return Done("ncclRecv", nccl_.receive(data.data(), data.size(), kNcclBytes, from, comm_, stream));
    });
  }

  Status Check() override { return hosts_.Check(); }
  void Fail(const Status& why) override { hosts_.Fail(why); }

  Result<std::unique_ptr<Communicator>> Split(int colour) override {
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> part, hosts_.Split(colour));
    auto group = std::make_unique<NcclGroup>(*part, device_, nccl_, options_, keeps_);
    group->Own(std::move(part));
    DSV4_TRY(group->Join());
    return group;
  }

 private:
  // Traffic to a rank and from it.
  struct Pair {
    std::span<const std::byte> send;
    std::span<std::byte> receive;
  };

  size_t Me() const { return static_cast<size_t>(rank()); }
  static size_t At(int r) { return static_cast<size_t>(r); }

  std::vector<int64_t> Begins(std::span<const int64_t> counts) const {
    DSV4_CHECK(static_cast<int>(counts.size()) == size()) << counts.size() << " of " << size();
    std::vector<int64_t> begins(counts.size() + 1, 0);
    std::partial_sum(counts.begin(), counts.end(), begins.begin() + 1);
    return begins;
  }

  // One exchange of all ranks: queued once, in the order in which every rank calls.
  template <typename Body>
  Status Exchange(const char* what, const Body& body) {
    DSV4_RETURN_IF_ERROR(Check());
    // The watcher sees to it that this ends.
    while (marks_[num_queued_ % kMostQueued] > device_.Reached()) {
      DSV4_RETURN_IF_ERROR(Check());
      ::usleep(20);
    }
    const Status status = device_.Queue(what, [&](void* stream) -> Status {
      const std::lock_guard lock(mutex_);
      if (comm_ == nullptr) return Unavailable(what);
      DSV4_RETURN_IF_ERROR(body(stream));
      DSV4_ASSIGN_OR_RETURN_STATUS(marks_[num_queued_ % kMostQueued], device_.Mark());
      last_mark_ = marks_[num_queued_++ % kMostQueued];
      return Status();
    });
    if (status.ok()) return status;
    hosts_.Fail(status);  // Unless it failed for what the hosts know already.
    return hosts_.Check();
  }
  static Status Unavailable(const char* what) {
    return {StatusCode::kUnavailable, fmt::format("{}: the NCCL group has ended", what)};
  }

  // Sends to and receives from all other ranks at once, with mutex_ held. `pair` says what; nothing for 0
  // bytes.
  template <typename PairOf>
  Status Together(void* stream, const PairOf& pair) {
    DSV4_RETURN_IF_ERROR(Describe("ncclGroupStart", nccl_.group_start()));
    Status status;
    for (int r = 0; r < size() && status.ok(); ++r) {
      if (r == rank()) continue;
      const Pair with = pair(r);
      if (!with.send.empty()) {
        status = Describe("ncclSend",
                          nccl_.send(with.send.data(), with.send.size(), kNcclBytes, r, comm_, stream));
      }
      if (status.ok() && !with.receive.empty()) {
        status = Describe("ncclRecv", nccl_.receive(with.receive.data(), with.receive.size(), kNcclBytes, r,
                                                    comm_, stream));
      }
    }
    const int ended = nccl_.group_end();  // In any case: the next call would belong to the group.
    return status.ok() ? Done("ncclGroupEnd", ended) : status;
  }

  // out = the sums of this rank's piece of all ranks' values.
  Status SumPiece(void* stream, std::span<const float> values, std::span<const int64_t> counts,
                  const std::vector<int64_t>& begins, std::byte* parts, std::span<float> out) {
    const int64_t piece_bytes = FloatBytes(counts[Me()]);
    DSV4_RETURN_IF_ERROR(device_.CopyRows(parts + rank() * piece_bytes, 0,
                                          Bytes(values.data() + begins[Me()]), 0, piece_bytes, 1));
    DSV4_RETURN_IF_ERROR(Together(stream, [&](int r) {
      return Pair{
          .send = {Bytes(values.data() + begins[At(r)]), static_cast<size_t>(FloatBytes(counts[At(r)]))},
          .receive = {parts + r * piece_bytes, static_cast<size_t>(piece_bytes)}};
    }));
    return device_.SumParts(reinterpret_cast<const float*>(parts), size(), counts[Me()], out.data());
  }

  Status Describe(const char* call, int result) const {
    // Calls of a group that does not block are in flight until they are done.
    if (result == kNcclSuccess || result == kNcclInProgress) return {};
    const char* const last = nccl_.get_last_error(comm_);
    return Internal(fmt::format("{}: {}{}{}", call, nccl_.get_error_string(result),
                                last != nullptr && *last != '\0' ? ": " : "", last != nullptr ? last : ""));
  }
  Status Done(const char* call, int result) { return Settle(call, result, options_.timeout); }
  // The outcome of a call, which is waited for: the next must not be made before. With mutex_ held.
  Status Settle(const char* call, int result, std::chrono::milliseconds timeout) {
    const Clock::time_point begin = Clock::now();
    while (result == kNcclInProgress) {
      if (const int asked = nccl_.get_async_error(comm_, &result); asked != kNcclSuccess) result = asked;
      if (result != kNcclInProgress) break;
      DSV4_RETURN_IF_ERROR(hosts_.Check());
      if (Clock::now() - begin > timeout) {
        return {StatusCode::kDeadlineExceeded,
                fmt::format("{}: not done within {} s", call, static_cast<double>(timeout.count()) / 1000.0)};
      }
      if (Clock::now() - begin > kImpatient) {
        ::usleep(50);
      } else {
        std::this_thread::yield();
      }
    }
    return Describe(call, result);
  }

  void Abort() {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return;
    nccl_.abort(comm_);
    comm_ = nullptr;
  }

  // The watcher's thread.
  void Watch() {
    uint64_t reached = 0;
    std::chrono::nanoseconds waited(0);
    Clock::time_point last_look = Clock::now();
    std::unique_lock lock(watch_mutex_);
    while (!wake_.wait_for(lock, kLook, [&] { return stop_; })) {
      const Clock::time_point now = Clock::now();
      const auto looked = std::min<std::chrono::nanoseconds>(now - last_look, kLongestLook);
      last_look = now;
      uint64_t queued = 0;
      {
        // Its holder looks after itself (Settle).
        const std::unique_lock queue_lock(mutex_, std::try_to_lock);
        if (!queue_lock.owns_lock()) continue;
        queued = last_mark_;
      }
      const uint64_t at = device_.Reached();
      waited = at >= queued || at != reached ? std::chrono::nanoseconds(0) : waited + looked;
      reached = at;
      if (waited > options_.timeout) {
        hosts_.Fail({StatusCode::kDeadlineExceeded,
                     fmt::format("an exchange by NCCL is not done within {} s",
                                 static_cast<double>(options_.timeout.count()) / 1000.0)});
      }
      if (hosts_.Check().ok()) continue;
      Abort();
      return;
    }
  }

  const std::shared_ptr<void> keeps_;  // Goes after all below.
  Communicator& hosts_;
  std::unique_ptr<Communicator> own_hosts_;
  DeviceStream& device_;
  const NcclLibrary nccl_;
  const NcclOptions options_;

  std::mutex mutex_;  // Guard of calls to NCCL. Taken after what Queue holds.
  NcclCommunicator* comm_ = nullptr;
  uint64_t last_mark_ = 0;  // Behind the last exchange.

  // The thread that queues reads and writes them.
  uint64_t num_queued_ = 0;
  std::array<uint64_t, kMostQueued> marks_ = {};  // Behind the last exchanges.

  std::mutex watch_mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread watcher_;
};

}  // namespace

Result<std::unique_ptr<Communicator>> JoinNccl(Communicator& hosts, DeviceStream& device,
                                               const Result<NcclLibrary>& library, const NcclOptions& options,
                                               std::shared_ptr<void> keeps) {
  DSV4_TRY(Agree(hosts, library ? Status() : library.error()));
  auto group = std::make_unique<NcclGroup>(hosts, device, *library, options, std::move(keeps));
  DSV4_TRY(group->Join());
  return group;
}

}  // namespace dsv4::comm
