// Thread pool for loops: shares taken from one atomic word, workers that spin, then sleep.
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

// The loops of a decode step follow each other within microseconds, and waking a thread costs more than many
// of them. Two steps are up to a millisecond apart, and sixteen threads that slept in between cost a fifth of
// a step.
constexpr std::chrono::microseconds kDefaultSpin(2000);

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

// The rest of a thread's share of a loop, as one word. Taking from it is one atomic step, which fails if the
// share belongs to another loop than the taker thinks.
class Share {
 public:
  static constexpr uint64_t kMaxUnits = 0xFFFF;

  explicit Share(uint64_t bits) : bits_(bits) {}
  Share(uint32_t loop, uint64_t begin, uint64_t end) : bits_(uint64_t{loop} << 32 | begin << 16 | end) {}

  uint64_t bits() const { return bits_; }
  uint32_t loop() const { return static_cast<uint32_t>(bits_ >> 32); }
  uint64_t begin() const { return bits_ >> 16 & kMaxUnits; }
  uint64_t end() const { return bits_ & kMaxUnits; }
  uint64_t size() const { return end() - begin(); }

 private:
  uint64_t bits_;
};

// A thread's own cache line: what others write is not in its way. Units of a loop are ranges of `shortest`
// iterations.
struct alignas(64) Slot {
  std::atomic<uint64_t> share{0};
  std::atomic<uint32_t> done{0};  // Units of the share, by any thread.
};

}  // namespace

// Every thread begins with a share of its own, and then helps with those of the others. So threads meet at a
// word only at the end of a loop. The kernel may have given a thread's core to another process: the others
// then do that thread's share.
struct ThreadPool::State {
  explicit State(int num_threads) : slots(static_cast<size_t>(num_threads)) {}

  std::vector<std::thread> workers;
  std::chrono::nanoseconds spin{0};
  std::mutex mutex;
  std::condition_variable work_ready;
  std::condition_variable work_done;
  // Body of the open loop, published by its shares: read only by a thread that has taken units of it, for
  // which the loop waits.
  const std::function<void(int64_t, int64_t)>* body = nullptr;
  int64_t count = 0;
  int64_t shortest = 1;    // Iterations of a unit; the last unit may be shorter.
  uint32_t num_loops = 0;  // Used by the calling thread alone.
  std::atomic<bool> failed{false};
  std::exception_ptr failure;  // Exception of the thread that set `failed`.
  std::vector<Slot> slots;     // The calling thread's is the first.
  std::atomic<int> num_asleep{0};
  std::atomic<bool> caller_sleeps{false};
  std::atomic<bool> stopping{false};

  void Run(uint64_t first, uint64_t last) {
    if (failed.load(std::memory_order_relaxed)) return;
    try {
      (*body)(static_cast<int64_t>(first) * shortest, std::min(count, static_cast<int64_t>(last) * shortest));
    } catch (...) {
      if (!failed.exchange(true)) failure = std::current_exception();
    }
  }

  // Takes half of the rest at a time. Ranges are few, the first ones are long, and all threads finish at
  // nearly the same time.
  void Take(Slot& slot, uint32_t loop) {
    uint64_t bits = slot.share.load(std::memory_order_acquire);
    uint32_t num_done = 0;
    for (;;) {
      const Share share(bits);
      if (share.loop() != loop || share.size() == 0) break;
      const uint64_t end = share.begin() + (share.size() + 1) / 2;
      const Share left(loop, end, share.end());
      if (!slot.share.compare_exchange_weak(bits, left.bits(), std::memory_order_acq_rel)) continue;
      Run(share.begin(), end);
      num_done += static_cast<uint32_t>(end - share.begin());
      bits = left.bits();
    }
    if (num_done == 0) return;
    slot.done.fetch_add(num_done, std::memory_order_seq_cst);
    if (caller_sleeps.load(std::memory_order_seq_cst)) {
      const std::lock_guard lock(mutex);
      work_done.notify_one();
    }
  }

  // The own share, then the others', beginning with the next one.
  void TakeAll(size_t own, uint32_t loop) {
    for (size_t i = 0; i < slots.size(); ++i) Take(slots[(own + i) % slots.size()], loop);
  }

  // After a loop that no thread is in any more.
  void ThrowFailure() {
    if (failed.exchange(false)) std::rethrow_exception(std::exchange(failure, nullptr));
  }

  void WorkerLoop(size_t own) {
    uint32_t seen = 0;
    const auto called = [&] {
      return Share(slots[own].share.load(std::memory_order_seq_cst)).loop() != seen ||
             stopping.load(std::memory_order_acquire);
    };
    for (;;) {
      if (!SpinUntil(spin, called)) {
        std::unique_lock lock(mutex);
        ++num_asleep;
        work_ready.wait(lock, called);
        --num_asleep;
      }
      if (stopping) return;
      seen = Share(slots[own].share.load(std::memory_order_acquire)).loop();
      TakeAll(own, seen);
    }
  }
};

ThreadPool::ThreadPool(int num_threads)
    : ThreadPool(ThreadPoolOptions{.num_threads = num_threads, .spin = {}, .cpus_of_nodes = {}}) {}

ThreadPool::ThreadPool(std::unique_ptr<State> state) : state_(std::move(state)) {}

// By way of another constructor: where a thread cannot be started, the destructor ends those that were.
ThreadPool::ThreadPool(const ThreadPoolOptions& options)
    : ThreadPool(std::make_unique<State>(options.num_threads)) {
  const int num_threads = options.num_threads;
  DSV4_CHECK(num_threads >= 1) << "num_threads " << num_threads;
  const bool a_core_each = num_threads <= static_cast<int>(std::thread::hardware_concurrency());
  state_->spin = options.spin.value_or(a_core_each ? kDefaultSpin : std::chrono::microseconds(0));
  for (int i = 1; i < num_threads; ++i) {
    state_->workers.emplace_back(
        [state = state_.get(), cpus_of_nodes = options.cpus_of_nodes, i, num_threads] {
          KeepOnNode(cpus_of_nodes, i, num_threads);
          state->WorkerLoop(static_cast<size_t>(i));
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
  State& state = *state_;
  const auto num_threads = static_cast<int64_t>(state.slots.size());
  constexpr int64_t kUnitsOfThread = 64;
  const auto most_units = std::min(kUnitsOfThread * num_threads, static_cast<int64_t>(Share::kMaxUnits));
  state.body = &body;
  state.count = count;
  state.shortest = std::max(grain, (count + most_units - 1) / most_units);
  const int64_t num_units = (count + state.shortest - 1) / state.shortest;
  if (++state.num_loops == 0) ++state.num_loops;  // 0 is no loop.
  const uint32_t loop = state.num_loops;
  const int64_t num_shares = std::min(num_threads, num_units);
  const auto begin_of = [&](int64_t i) { return static_cast<uint64_t>(num_units * i / num_shares); };
  for (int64_t i = num_shares - 1; i >= 0; --i) {
    Slot& slot = state.slots[static_cast<size_t>(i)];
    slot.done.store(0, std::memory_order_relaxed);
    slot.share.store(Share(loop, begin_of(i), begin_of(i + 1)).bits(), std::memory_order_release);
  }
  // Either this sees that a worker sleeps, or the worker, which counts itself behind this, sees its share.
  if (state.num_asleep.fetch_add(0, std::memory_order_seq_cst) > 0) {
    { const std::lock_guard lock(state.mutex); }
    state.work_ready.notify_all();
  }
  state.TakeAll(0, loop);
  int64_t waits_for = 0;
  const auto done = [&] {
    for (; waits_for < num_shares; ++waits_for) {
      const uint32_t units = state.slots[static_cast<size_t>(waits_for)].done.load(std::memory_order_seq_cst);
      if (units != begin_of(waits_for + 1) - begin_of(waits_for)) return false;
    }
    return true;
  };
  if (!SpinUntil(state.spin, done)) {
    std::unique_lock lock(state.mutex);
    state.caller_sleeps.store(true, std::memory_order_seq_cst);
    state.work_done.wait(lock, done);
    state.caller_sleeps.store(false, std::memory_order_relaxed);
  }
  state.ThrowFailure();
}

}  // namespace dsv4
