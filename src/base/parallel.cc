#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/numa.h"

namespace dsv4 {

namespace {

// The loops of a decode step follow each other within microseconds, and waking a thread costs more than many of them.
constexpr std::chrono::microseconds kDefaultSpin(100);

// Tells the core that this is a spinning loop.
void SpinPause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// Spins until `done()` or the time is up; says whether it was done. The clock is read now and then only.
template <typename Done>
bool SpinUntil(std::chrono::nanoseconds spin, const Done& done) {
  constexpr int kPausesPerLook = 64;
  if (done()) return true;
  if (spin.count() <= 0) return false;
  const auto end = std::chrono::steady_clock::now() + spin;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (done()) return true;
      SpinPause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return done();
}

// Keeps thread `index` of `num_threads` on the node that owns its share of all CPUs.
void KeepOnNode(const std::vector<std::vector<int>>& cpus_of_nodes, int index, int num_threads) {
  size_t num_cpus = 0;
  for (const std::vector<int>& cpus : cpus_of_nodes) num_cpus += cpus.size();
  if (num_cpus == 0) return;
  size_t cpu = num_cpus * static_cast<size_t>(index) / static_cast<size_t>(num_threads);
  size_t node = 0;
  while (cpu >= cpus_of_nodes[node].size()) cpu -= cpus_of_nodes[node++].size();
  const Status status = KeepThreadOn(cpus_of_nodes[node]);
  if (!status.ok()) LogWarning(status.message());
}

// A loop as one word, so that joining one, leaving it and closing it are single atomic steps: how many workers are in it, whether more may
// come in, and a number by which a worker knows one it was in already.
class LoopWord {
 public:
  explicit LoopWord(uint64_t bits) : bits_(bits) {}
  LoopWord Next() const { return LoopWord(((bits_ >> kNumberShift) + 1) << kNumberShift | kOpen); }

  uint64_t bits() const { return bits_; }
  uint64_t number() const { return bits_ >> kNumberShift; }
  bool open() const { return (bits_ & kOpen) != 0; }
  uint64_t workers() const { return bits_ & (kOpen - 1); }

  static constexpr uint64_t kWorker = 1;
  static constexpr int kNumberShift = 17;
  static constexpr uint64_t kOpen = uint64_t{1} << (kNumberShift - 1);

 private:
  uint64_t bits_;
};

}  // namespace

struct ThreadPool::State {
  std::vector<std::thread> workers;
  std::chrono::nanoseconds spin{0};
  std::mutex mutex;
  std::condition_variable work_ready;
  std::condition_variable work_done;
  // Of the open loop. Written only while no loop is open and no worker is in one.
  const std::function<void(int64_t, int64_t)>* body = nullptr;
  int64_t count = 0;
  int64_t shortest = 1;  // Range; the last may be shorter.
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr failure;  // Of the thread that set `failed`.
  // Opening one publishes the loop above, a worker's leaving what it computed. Opened, and `stopping` set, under the mutex, so that a
  // sleeping worker cannot miss it.
  std::atomic<uint64_t> loop{0};
  std::atomic<bool> stopping{false};

  LoopWord Loop() const { return LoopWord(loop.load(std::memory_order_acquire)); }

  // Ranges shrink with what is left: few to hand out, and all threads are done at nearly the same time.
  void TakeRanges() {
    const auto shares = 2 * (static_cast<int64_t>(workers.size()) + 1);
    int64_t begin = next.load();
    while (begin < count) {
      const int64_t end = std::min(count, begin + std::max(shortest, (count - begin) / shares));
      if (!next.compare_exchange_weak(begin, end)) continue;
      try {
        (*body)(begin, end);
      } catch (...) {
        if (!failed.exchange(true)) failure = std::current_exception();
        next = count;
        return;
      }
      begin = next.load();
    }
  }

  // After a loop that no thread is in any more.
  void ThrowFailure() {
    if (failed.exchange(false)) std::rethrow_exception(std::exchange(failure, nullptr));
  }

  void WorkerLoop() {
    uint64_t seen = 0;
    const auto called = [&] {
      const LoopWord now = Loop();
      return stopping.load(std::memory_order_acquire) || (now.open() && now.number() != seen);
    };
    for (;;) {
      if (!SpinUntil(spin, called)) {
        std::unique_lock lock(mutex);
        work_ready.wait(lock, called);
      }
      if (stopping) return;
      uint64_t bits = loop.load(std::memory_order_relaxed);
      if (const LoopWord now(bits); !now.open() || now.number() == seen) continue;  // Closed meanwhile.
      if (!loop.compare_exchange_weak(bits, bits + LoopWord::kWorker, std::memory_order_acquire)) continue;
      seen = LoopWord(bits).number();
      TakeRanges();
      const LoopWord left(loop.fetch_sub(LoopWord::kWorker, std::memory_order_acq_rel) - LoopWord::kWorker);
      if (!left.open() && left.workers() == 0) {
        const std::lock_guard lock(mutex);
        work_done.notify_one();
      }
    }
  }
};

ThreadPool::ThreadPool(int num_threads)
    : ThreadPool(ThreadPoolOptions{.num_threads = num_threads, .spin = {}, .cpus_of_nodes = {}}) {}

ThreadPool::ThreadPool(const ThreadPoolOptions& options) : state_(std::make_unique<State>()) {
  const int num_threads = options.num_threads;
  DSV4_CHECK(num_threads >= 1) << "num_threads " << num_threads;
  const bool a_core_each = num_threads <= static_cast<int>(std::thread::hardware_concurrency());
  state_->spin = options.spin.value_or(a_core_each ? kDefaultSpin : std::chrono::microseconds(0));
  for (int i = 1; i < num_threads; ++i) {
    state_->workers.emplace_back(
        [state = state_.get(), cpus_of_nodes = options.cpus_of_nodes, i, num_threads] {
          KeepOnNode(cpus_of_nodes, i, num_threads);
          state->WorkerLoop();
        });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->work_ready.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadPool::num_threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::ParallelFor(int64_t count, int64_t grain,
                             const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (state_->workers.empty() || count <= grain) {
    body(0, count);
    return;
  }
  state_->body = &body;
  state_->count = count;
  state_->shortest = std::max(grain, count / (16 * num_threads()));
  state_->next = 0;
  {
    const std::lock_guard lock(state_->mutex);
    state_->loop.store(state_->Loop().Next().bits(), std::memory_order_release);
  }
  state_->work_ready.notify_all();
  state_->TakeRanges();
  // The loop does not wait for a worker that has not come: the kernel may have given its core to another process.
  state_->loop.fetch_and(~LoopWord::kOpen, std::memory_order_acq_rel);
  const auto done = [&] { return state_->Loop().workers() == 0; };
  if (!SpinUntil(state_->spin, done)) {
    std::unique_lock lock(state_->mutex);
    state_->work_done.wait(lock, done);
  }
  state_->ThrowFailure();
}

}  // namespace dsv4
