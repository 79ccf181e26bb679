// Pinned memory for all cached experts, mapped in blocks ahead and filled by several threads.
#include "backend/cuda/tiers/pinned_store.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#include "backend/cuda/runtime/pinned_memory.h"
#include "backend/cuda/tiers/reordered_copy.h"
#include "base/parallel.h"
#include "base/stopwatch.h"
#include "base/thread_count.h"

namespace dsv4::backend::cuda {
namespace {

constexpr size_t kAlignment = 256;
// Memory is pinned in blocks: the driver takes its time for each.
constexpr size_t kBlockBytes = size_t{256} << 20;
// Blocks that wait for the thread that loads. What is left of them at the end was pinned for nothing.
constexpr int kMostAhead = 4;
constexpr int kMakers = 4;
// Pieces of whole blocks of codes; from the pages of a file to a block by way of the second-level cache.
constexpr size_t kPieceBytes = size_t{512} << 10;
// More wait: a person sees how far loading has come.
constexpr size_t kMostPieces = 2048;
constexpr int kMaxThreads = 32;

// Pages of a file that are in memory come into the process many at a time; each by itself takes longer than
// its copy. Speed only.
void MapPages(const std::byte* from, size_t num_bytes) {
#ifdef MADV_POPULATE_READ
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(from) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(from) + num_bytes + page - 1) / page * page;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_READ);
#endif
}

}  // namespace

PinnedStore::PinnedStore(DeviceQueue& queue, int num_threads)
    : queue_(queue), num_threads_(num_threads > 0 ? num_threads : CoresUpTo(kMaxThreads)) {}

int64_t PinnedStore::PinnedBytes() const {
  int64_t num_bytes = 0;
  for (const auto& [begin, block] : blocks_) {
    if (const auto alive = block.lock()) num_bytes += static_cast<int64_t>(alive->num_bytes());
  }
  return num_bytes;
}

Status PinnedStore::Start() {
  if (!threads_.empty()) return {};
  const std::lock_guard lock(mutex_);
  stopping_ = ahead_fails_ = false;
  num_taken_ = 0;
  counters_.threads = counters_.makers = 0;
  const auto start = [this](void (PinnedStore::*work)(), int& count) {
    threads_.emplace_back([this, work] { (this->*work)(); });
    ++count;
  };
  try {
    start(&PinnedStore::MakeBlocks, counters_.makers);
    for (int i = 0; i < num_threads_; ++i) start(&PinnedStore::CopyPieces, counters_.threads);
    while (counters_.makers < kMakers) start(&PinnedStore::MakeBlocks, counters_.makers);
  } catch (const std::system_error& error) {
    // Fewer do.
    if (counters_.threads > 0) return {};
    return ResourceExhausted(fmt::format("cached experts: threads to copy them: {}", error.what()));
  }
  return {};
}

void PinnedStore::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    pieces_.clear();
  }
  changed_.notify_all();
  pieces_come_.notify_all();
  threads_.clear();
  ready_.clear();
}

// Makes as many blocks as loads wait for now. Ahead of them it makes as many as were wanted so far, up to
// kMostAhead: few weights pin one.
void PinnedStore::MakeBlocks() {
  ThreadPool threads(
      {.num_threads = std::max(1, num_threads_ / kMakers), .spin = std::chrono::microseconds(0)});
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] {
      if (stopping_) return true;
      const int ahead = ahead_fails_ ? 0 : std::min(kMostAhead, num_taken_);
      return static_cast<int>(ready_.size()) + num_in_making_ < std::max(ahead, waiting_ ? 1 : 0);
    });
    if (stopping_) return;
    ++num_in_making_;
    lock.unlock();
    const Stopwatch stopwatch;
    Result<Buffer> block = AllocatePinned(queue_, kBlockBytes, threads);
    lock.lock();
    counters_.pinning += stopwatch.seconds();
    --num_in_making_;
    if (block.has_value()) {
      ready_.push_back(std::move(*block));
    } else if (waiting_ &&
               num_in_making_ == 0) {  // Others in the making may yet be the one that is waited for.
      refused_ = block.error();
      waiting_ = false;
    } else {
      ahead_fails_ = true;
    }
    changed_.notify_all();
  }
}

Result<std::shared_ptr<const Buffer>> PinnedStore::TakeBlock(size_t num_bytes) {
  const Stopwatch stopwatch;
  Result<Buffer> taken = Error(Internal("no block"));
  if (num_bytes > kBlockBytes) {
    ThreadPool threads(num_threads_);
    taken = AllocatePinned(queue_, num_bytes, threads);
  } else {
    std::unique_lock lock(mutex_);
    if (ready_.empty()) {
      waiting_ = true;
      changed_.notify_all();
      changed_.wait(lock, [this] { return !ready_.empty() || refused_.has_value(); });
      waiting_ = false;
    }
    if (ready_.empty()) {
      taken = Error(*std::exchange(refused_, std::nullopt));
    } else {
      refused_.reset();
      taken = std::move(ready_.back());
      ready_.pop_back();
      ++num_taken_;
      changed_.notify_all();
    }
  }
  {
    const std::lock_guard lock(mutex_);
    counters_.waited_for_memory += stopwatch.seconds();
  }
  if (taken.has_value()) return std::make_shared<const Buffer>(std::move(*taken));
  return Error(
      taken.error().WithContext(fmt::format("cached experts: {:.2f} GB of the host's memory are pinned",
                                            static_cast<double>(PinnedBytes()) / 1e9)));
}

Result<Buffer> PinnedStore::Place(size_t num_bytes) {
  DSV4_TRY(Start());
  const size_t wanted = (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (block_ == nullptr || block_->num_bytes() - block_used_ < wanted) {
    std::erase_if(blocks_, [](const auto& entry) { return entry.second.expired(); });
    DSV4_ASSIGN_OR_RETURN(block_, TakeBlock(wanted));
    block_used_ = 0;
    blocks_[static_cast<const std::byte*>(block_->data())] = block_;
  }
  std::byte* const begin =
      static_cast<std::byte*>(block_->data()) + std::exchange(block_used_, block_used_ + wanted);
  return Buffer(std::shared_ptr<void>(block_, begin), num_bytes, Device{});
}

void PinnedStore::Copy(std::byte* to, const std::byte* from, size_t num_bytes, bool reorder) {
  std::unique_lock lock(mutex_);
  if (pieces_.size() > kMostPieces) {
    const Stopwatch stopwatch;
    changed_.wait(lock, [this] { return pieces_.size() <= kMostPieces / 2; });
    counters_.waited_for_copies += stopwatch.seconds();
  }
  counters_.bytes += static_cast<int64_t>(num_bytes);
  for (size_t begin = 0; begin < num_bytes; begin += kPieceBytes) {
    pieces_.push_back({to + begin, from + begin, std::min(kPieceBytes, num_bytes - begin), reorder});
    pieces_come_.notify_one();
  }
}

void PinnedStore::CopyPieces() {
  std::unique_lock lock(mutex_);
  while (true) {
    pieces_come_.wait(lock, [this] { return stopping_ || !pieces_.empty(); });
    if (stopping_) return;
    const Piece piece = pieces_.front();
    pieces_.pop_front();
    // Here, where it is seen at every number that it goes through.
    if (pieces_.size() == kMostPieces / 2) changed_.notify_all();
    ++num_copying_;
    lock.unlock();
    const Stopwatch stopwatch;
    MapPages(piece.from, piece.num_bytes);
    if (piece.reorder) {
      CopyInE2m1Order(piece.to, piece.from, piece.num_bytes);
    } else {
      std::memcpy(piece.to, piece.from, piece.num_bytes);
    }
    lock.lock();
    counters_.copying += stopwatch.seconds();
    --num_copying_;
    if (num_copying_ == 0 && pieces_.empty()) changed_.notify_all();
  }
}

void PinnedStore::Settle() {
  const Stopwatch stopwatch;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return pieces_.empty() && num_copying_ == 0; });
  counters_.waited_for_copies += stopwatch.seconds();
}

void PinnedStore::Finish() {
  Settle();
  Stop();
  block_.reset();
}

void PinnedStore::Forget() {
  Finish();
  blocks_.clear();
  const std::lock_guard lock(mutex_);
  counters_ = {};
}

bool PinnedStore::Holds(const std::byte* address) const {
  auto block = blocks_.upper_bound(address);
  if (block == blocks_.begin()) return false;
  const auto alive = (--block)->second.lock();
  return alive != nullptr && address < block->first + alive->num_bytes();
}

PinnedLoad PinnedStore::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace dsv4::backend::cuda
