// Communicator of ranks of one machine: rounds over shared buffers, mailboxes for pairs, futexes and
// deadlines.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "comm/peers.h"
#include "comm/shared_memory.h"
#include "comm/shared_memory_layout.h"
#include "comm/waiting.h"

namespace dsv4::comm {
namespace {

using Clock = std::chrono::steady_clock;

// A few microseconds: with more ranks than cores, longer spinning keeps the others waiting. Where every rank
// has two cores, up to a millisecond, which a step is worth that would begin by waking all ranks.
constexpr int kMemorySpins = 200;
constexpr int kPatientMemorySpins = 20000;

void SleepOn(std::atomic<uint32_t>& bell, uint32_t value, std::chrono::milliseconds most) {
  const timespec timeout{.tv_sec = most.count() / 1000, .tv_nsec = most.count() % 1000 * 1000000};
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&bell), FUTEX_WAIT, value, &timeout, nullptr, 0);
}

void Ring(RankControl& control) {
  if (control.sleeping.load() == 0) return;
  control.bell.fetch_add(1);
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&control.bell), FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

// The whole group, which all its parts share: its members, and how it failed.
struct Whole {
  std::shared_ptr<SharedMemory> memory;
  Layout layout;
  int size;
  std::unique_ptr<Peers> peers;
  std::chrono::milliseconds timeout;

  Header& header() const { return layout.header(); }

  // The first failure stays; returns the one that the group has.
  Status Fail(const Status& why) const {
    FailureState expected = FailureState::kNone;
    if (header().failure_state.compare_exchange_strong(expected, FailureState::kBeingWritten)) {
      header().failure_code = static_cast<uint32_t>(why.code());
      const size_t length = std::min(why.message().size(), header().failure_message.size() - 1);
      std::memcpy(header().failure_message.data(), why.message().data(), length);
      header().failure_state.store(FailureState::kFailed);
      for (int rank = 0; rank < size; ++rank) Ring(layout.control(rank));
      return why;
    }
    const Status status = Failure();
    return status.ok() ? why : status;  // Ok: just being written.
  }
  Status Failure() const {
    if (header().failure_state.load() != FailureState::kFailed) return {};
    const auto& message = header().failure_message;
    return {static_cast<StatusCode>(header().failure_code),
            std::string(message.data(), ::strnlen(message.data(), message.size()))};
  }
  // A member that ended or left.
  Status Lost() const {
    for (int rank = 0; rank < size; ++rank) {
      if (layout.control(rank).left.load() != 0) {
        return {StatusCode::kUnavailable,
                fmt::format("rank {} of {} (process {}) left the group", rank, size, peers->process(rank))};
      }
    }
    if (const std::optional<int> rank = peers->Ended()) {
      return {StatusCode::kUnavailable,
              fmt::format("rank {} of {} (process {}) ended", *rank, size, peers->process(*rank))};
    }
    return {};
  }
};

class Group final : public Communicator {
 public:
  // `members`: the ranks of the whole that this part is made of.
  Group(std::shared_ptr<const Whole> whole, std::shared_ptr<SharedMemory> memory, std::vector<int> members,
        int rank)
      : whole_(std::move(whole)),
        memory_(std::move(memory)),
        layout_(memory_->data(), static_cast<int>(members.size())),
        members_(std::move(members)),
        rank_(rank),
        me_(layout_.control(rank)),
        num_spins_(HasTwoCoresEach(whole_->size) ? kPatientMemorySpins : kMemorySpins) {}

  ~Group() override { me_.left.store(1); }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }

  Status Barrier(Wait wait) override {
    DSV4_RETURN_IF_ERROR(Announce({}));
    return WaitForAll(round_, wait);
  }

  Status Broadcast(std::span<std::byte> data, int root, Wait wait) override {
    DSV4_CHECK(0 <= root && root < size()) << root;
    for (size_t begin = 0; begin < data.size(); begin += kChunkBytes) {
      const auto chunk = data.subspan(begin, std::min<size_t>(kChunkBytes, data.size() - begin));
      if (rank_ == root) {
        DSV4_RETURN_IF_ERROR(Announce(chunk));
        continue;
      }
      DSV4_RETURN_IF_ERROR(Announce({}));
      DSV4_RETURN_IF_ERROR(WaitForRank(root, round_, wait));
      std::memcpy(chunk.data(), layout_.buffer(root, round_), chunk.size());
      wait = Wait::kDeadline;  // A rank that has begun is at work.
    }
    return {};
  }

  Status AllGather(std::span<const std::byte> mine, int64_t num_rows, std::span<const int64_t> row_bytes,
                   std::span<std::byte> all) override {
    DSV4_CHECK(row_bytes.size() == members_.size()) << row_bytes.size() << " of " << members_.size();
    int64_t all_row_bytes = 0;
    int64_t longest = 0;
    for (const int64_t bytes : row_bytes) {
      all_row_bytes += bytes;
      longest = std::max(longest, bytes * num_rows);
    }
    DSV4_CHECK(static_cast<int64_t>(all.size()) == all_row_bytes * num_rows)
        << all.size() << " of " << all_row_bytes * num_rows;
    DSV4_CHECK(static_cast<int64_t>(mine.size()) == row_bytes[static_cast<size_t>(rank_)] * num_rows)
        << mine.size();
    for (int64_t begin = 0; begin < longest; begin += kChunkBytes) {
      DSV4_RETURN_IF_ERROR(Announce(Chunk(mine, begin)));
      DSV4_RETURN_IF_ERROR(WaitForAll(round_, Wait::kDeadline));
      int64_t column = 0;
      for (int r = 0; r < size(); ++r) {
        const int64_t bytes = row_bytes[static_cast<size_t>(r)];
        const int64_t end = std::min(begin + kChunkBytes, bytes * num_rows);
        // The chunk is a piece of the rank's matrix, row by row; its rows go to their columns.
        for (int64_t at = begin; at < end;) {
          const int64_t row = at / bytes;
          const int64_t count = std::min(end, (row + 1) * bytes) - at;
          std::memcpy(all.data() + row * all_row_bytes + column + at % bytes,
                      layout_.buffer(r, round_) + (at - begin), static_cast<size_t>(count));
          at += count;
        }
        column += bytes;
      }
    }
    return {};
  }

  Status AllToAll(std::span<const std::byte> mine, int64_t num_rows, std::span<const int64_t> row_bytes,
                  std::span<std::byte> parts) override {
    DSV4_CHECK(row_bytes.size() == members_.size()) << row_bytes.size() << " of " << members_.size();
    int64_t all_row_bytes = 0;
    for (const int64_t bytes : row_bytes) all_row_bytes += bytes;
    const int64_t first_column = std::accumulate(row_bytes.begin(), row_bytes.begin() + rank_, int64_t{0});
    const int64_t my_bytes = row_bytes[static_cast<size_t>(rank_)];
    const int64_t num_bytes = all_row_bytes * num_rows;
    DSV4_CHECK(static_cast<int64_t>(mine.size()) == num_bytes) << mine.size() << " of " << num_bytes;
    DSV4_CHECK(static_cast<int64_t>(parts.size()) == size() * my_bytes * num_rows) << parts.size();
    for (int64_t begin = 0; begin < num_bytes; begin += kChunkBytes) {
      DSV4_RETURN_IF_ERROR(Announce(Chunk(mine, begin)));
      DSV4_RETURN_IF_ERROR(WaitForAll(round_, Wait::kDeadline));
      const int64_t end = std::min(begin + kChunkBytes, num_bytes);
      for (int r = 0; r < size(); ++r) {
        // Columns of mine in the rows that the chunk has a piece of.
        for (int64_t row = begin / all_row_bytes; row * all_row_bytes < end; ++row) {
          const int64_t columns = row * all_row_bytes + first_column;
          const int64_t from = std::max(begin, columns);
          const int64_t to = std::min(end, columns + my_bytes);
          if (from >= to) continue;
          std::memcpy(parts.data() + (r * num_rows + row) * my_bytes + (from - columns),
                      layout_.buffer(r, round_) + (from - begin), static_cast<size_t>(to - from));
        }
      }
    }
    return {};
  }

  Status AllReduceSum(std::span<float> values) override {
    return Sum(values, 0, static_cast<int64_t>(values.size()), values.data());
  }

  Status ReduceScatterSum(std::span<const float> values, std::span<const int64_t> counts,
                          std::span<float> mine) override {
    DSV4_CHECK(counts.size() == members_.size()) << counts.size() << " of " << members_.size();
    int64_t begin = 0;
    for (int r = 0; r < rank_; ++r) begin += counts[static_cast<size_t>(r)];
    const int64_t count = counts[static_cast<size_t>(rank_)];
    DSV4_CHECK(static_cast<int64_t>(mine.size()) == count) << mine.size() << " of " << count;
    return Sum(values, begin, begin + count, mine.data());
  }

  Status Send(std::span<const std::byte> data, int to) override {
    DSV4_CHECK(0 <= to && to < size() && to != rank_) << to;
    Mailbox& box = layout_.mailbox(rank_, to);
    while (!data.empty()) {
      const uint64_t written = box.written.load(std::memory_order_relaxed);
      const auto free = [&] { return kMailboxBytes - (written - box.read.load(std::memory_order_acquire)); };
      DSV4_RETURN_IF_ERROR(
          WaitUntil([&] { return free() > 0; }, Wait::kDeadline, [&] { return std::vector<int>{to}; }));
      const uint64_t place = written % kMailboxBytes;
      const size_t count = std::min({data.size(), static_cast<size_t>(free()), kMailboxBytes - place});
      std::memcpy(box.ring.data() + place, data.data(), count);
      box.written.store(written + count);
      Ring(layout_.control(to));
      data = data.subspan(count);
    }
    return {};
  }

  Status Recv(std::span<std::byte> data, int from) override {
    DSV4_CHECK(0 <= from && from < size() && from != rank_) << from;
    Mailbox& box = layout_.mailbox(from, rank_);
    while (!data.empty()) {
      const uint64_t read = box.read.load(std::memory_order_relaxed);
      const auto ready = [&] { return box.written.load(std::memory_order_acquire) - read; };
      DSV4_RETURN_IF_ERROR(
          WaitUntil([&] { return ready() > 0; }, Wait::kDeadline, [&] { return std::vector<int>{from}; }));
      const uint64_t place = read % kMailboxBytes;
      const size_t count = std::min({data.size(), static_cast<size_t>(ready()), kMailboxBytes - place});
      std::memcpy(data.data(), box.ring.data() + place, count);
      box.read.store(read + count);
      Ring(layout_.control(from));
      data = data.subspan(count);
    }
    return {};
  }

  Status Check() override {
    DSV4_RETURN_IF_ERROR(whole_->Failure());
    const Status lost = whole_->Lost();
    return lost.ok() ? lost : whole_->Fail(lost);
  }

  void Fail(const Status& why) override {
    (void)whole_->Fail(why.WithContext(fmt::format("rank {}", members_[static_cast<size_t>(rank_)])));
  }

  Result<std::unique_ptr<Communicator>> Split(int colour) override {
    struct Offer {
      int32_t colour;
      int32_t process;
      int32_t fd;
    };
    std::vector<Offer> offers(members_.size());
    const std::vector<int64_t> sizes(members_.size(), sizeof(Offer));
    Offer mine{.colour = colour, .process = ::getpid(), .fd = -1};
    const auto exchange = [&] {
      return AllGather(std::as_bytes(std::span(&mine, 1)), 1, sizes,
                       std::as_writable_bytes(std::span(offers)));
    };
    DSV4_TRY(exchange());
    std::vector<int> part;  // Ranks of this group.
    for (int r = 0; r < size(); ++r) {
      if (offers[static_cast<size_t>(r)].colour == colour) part.push_back(r);
    }
    // The first rank of a part makes its memory and the others open it. Both lie between two exchanges, so
    // that the memory stays until all ranks have it.
    const auto part_size = static_cast<int>(part.size());
    Result<std::shared_ptr<SharedMemory>> memory = Error(Internal("not opened"));
    if (part.front() == rank_) {
      memory = SharedMemory::Create(part_size);
      if (memory) mine.fd = (*memory)->fd();
    }
    DSV4_TRY(exchange());
    if (part.front() != rank_) {
      const Offer& offer = offers[static_cast<size_t>(part.front())];
      memory = offer.fd < 0 ? Error(ResourceExhausted("the first rank of the part has no shared memory"))
                            : SharedMemory::Open(offer.process, offer.fd, part_size);
    }
    // A rank that cannot open it says so when all are known to live. No rank comes to the second barrier
    // before all have tried. If a rank has ended, its end explains the missing memory.
    DSV4_TRY(Barrier(Wait::kDeadline));
    DSV4_TRY(Barrier(Wait::kDeadline));
    if (!memory) Fail(memory.error());
    DSV4_TRY(Barrier(Wait::kDeadline));
    std::vector<int> members;
    for (const int r : part) members.push_back(members_[static_cast<size_t>(r)]);
    const auto place = std::find(part.begin(), part.end(), rank_) - part.begin();
    return std::make_unique<Group>(whole_, std::move(*memory), std::move(members), static_cast<int>(place));
  }

 private:
  static std::span<const std::byte> Chunk(std::span<const std::byte> data, int64_t begin) {
    const auto from = std::min(data.size(), static_cast<size_t>(begin));
    return data.subspan(from, std::min<size_t>(kChunkBytes, data.size() - from));
  }

  // Begins the next round with at most a chunk.
  Status Announce(std::span<const std::byte> chunk) {
    DSV4_RETURN_IF_ERROR(whole_->Failure());
    if (!chunk.empty()) {
      DSV4_RETURN_IF_ERROR(WaitForAll(round_, Wait::kDeadline));
      std::memcpy(layout_.buffer(rank_, round_ + 1), chunk.data(), chunk.size());
    }
    ++round_;
    me_.round.store(round_);
    for (int r = 0; r < size(); ++r) {
      if (r != rank_) Ring(layout_.control(r));
    }
    return {};
  }

  // out = the sums of elements [begin, end) of all ranks' values.
  Status Sum(std::span<const float> values, int64_t begin, int64_t end, float* out) {
    constexpr int64_t kCount = kChunkBytes / static_cast<int64_t>(sizeof(float));
    for (int64_t first = 0; first < static_cast<int64_t>(values.size()); first += kCount) {
      DSV4_RETURN_IF_ERROR(
          Announce(Chunk(std::as_bytes(values), first * static_cast<int64_t>(sizeof(float)))));
      DSV4_RETURN_IF_ERROR(WaitForAll(round_, Wait::kDeadline));
      const int64_t last = std::min({end, first + kCount, static_cast<int64_t>(values.size())});
      const auto part = [&](int r) { return reinterpret_cast<const float*>(layout_.buffer(r, round_)); };
      for (int64_t i = std::max(begin, first); i < last; ++i) {
        float sum = part(0)[i - first];
        for (int r = 1; r < size(); ++r) sum += part(r)[i - first];
        out[i - begin] = sum;
      }
    }
    return {};
  }

  Status WaitForRank(int rank, uint64_t round, Wait wait) {
    return WaitUntil([&] { return layout_.control(rank).round.load() >= round; }, wait,
                     [&] { return std::vector<int>{rank}; });
  }
  Status WaitForAll(uint64_t round, Wait wait) {
    const auto missing = [&] {
      std::vector<int> ranks;
      for (int r = 0; r < size(); ++r) {
        if (layout_.control(r).round.load() < round) ranks.push_back(r);
      }
      return ranks;
    };
    const auto all = [&] {
      for (int r = 0; r < size(); ++r) {
        if (layout_.control(r).round.load() < round) return false;
      }
      return true;
    };
    return WaitUntil(all, wait, missing);
  }

  // `missing` names the ranks waited for.
  template <typename Ready, typename Missing>
  Status WaitUntil(const Ready& ready, Wait wait, const Missing& missing) {
    for (int i = 0; i < num_spins_; ++i) {
      if (ready()) return {};
      __builtin_ia32_pause();
    }
    WaitingTime waiting;
    for (;;) {
      const uint32_t bell = me_.bell.load();
      me_.sleeping.store(1);
      const bool done = ready() || !whole_->Failure().ok();
      if (!done) SleepOn(me_.bell, bell, kLook);
      me_.sleeping.store(0);
      if (ready()) return {};
      DSV4_RETURN_IF_ERROR(whole_->Failure());
      // A rank that ended after giving what we wait for has done its part: look again after finding it gone.
      const Status lost = whole_->Lost();
      if (ready()) return {};
      if (!lost.ok()) return whole_->Fail(lost);
      if (waiting.Look() > whole_->timeout && wait == Wait::kDeadline) return Late(missing());
    }
  }

  Status Late(const std::vector<int>& missing) {
    std::vector<std::string> names;
    for (const int r : missing) {
      const int rank = members_[static_cast<size_t>(r)];
      names.push_back(fmt::format("rank {} (process {})", rank, whole_->peers->process(rank)));
    }
    return whole_->Fail({StatusCode::kDeadlineExceeded,
                         fmt::format("{}: not there within {} s, missed by rank {}", fmt::join(names, ", "),
                                     static_cast<double>(whole_->timeout.count()) / 1000.0,
                                     members_[static_cast<size_t>(rank_)])});
  }

  std::shared_ptr<const Whole> whole_;
  std::shared_ptr<SharedMemory> memory_;
  Layout layout_;
  std::vector<int> members_;
  int rank_;
  RankControl& me_;
  const int num_spins_;
  uint64_t round_ = 0;
};

}  // namespace

Result<std::unique_ptr<Communicator>> JoinSharedMemory(std::shared_ptr<SharedMemory> memory, int rank,
                                                       int size, std::chrono::milliseconds timeout) {
  DSV4_CHECK(0 <= rank && rank < size) << rank << " of " << size;
  const Layout layout(memory->data(), size);
  layout.control(rank).process.store(::getpid());
  const Clock::time_point begin = Clock::now();
  std::vector<pid_t> processes(static_cast<size_t>(size));
  for (;;) {
    std::vector<int> missing;
    for (int r = 0; r < size; ++r) {
      processes[static_cast<size_t>(r)] = layout.control(r).process.load();
      if (processes[static_cast<size_t>(r)] == 0) missing.push_back(r);
    }
    if (missing.empty()) break;
    if (Clock::now() - begin > timeout) {
      return Error(StatusCode::kDeadlineExceeded,
                   fmt::format("rank {}: ranks {} did not join within {} s", rank, fmt::join(missing, ", "),
                               static_cast<double>(timeout.count()) / 1000.0));
    }
    ::usleep(1000);
  }
  std::vector<int> members(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) members[static_cast<size_t>(r)] = r;
  auto whole =
      std::make_shared<Whole>(Whole{memory, layout, size, std::make_unique<Peers>(processes), timeout});
  return std::make_unique<Group>(std::move(whole), std::move(memory), std::move(members), rank);
}

}  // namespace dsv4::comm
