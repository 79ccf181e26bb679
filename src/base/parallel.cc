#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.h"

namespace dsv4 {

struct ThreadPool::State {
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable work_ready;
  std::condition_variable work_done;
  const std::function<void(int64_t, int64_t)>* body = nullptr;
  int64_t count = 0;
  int64_t chunk = 1;
  std::atomic<int64_t> next{0};
  uint64_t generation = 0;
  int busy = 0;
  bool stopping = false;

  void TakeChunks() {
    for (;;) {
      const int64_t begin = next.fetch_add(chunk);
      if (begin >= count) return;
      (*body)(begin, std::min(count, begin + chunk));
    }
  }

  void WorkerLoop() {
    uint64_t seen = 0;
    std::unique_lock lock(mutex);
    for (;;) {
      work_ready.wait(lock, [&] { return stopping || generation != seen; });
      if (stopping) return;
      seen = generation;
      lock.unlock();
      TakeChunks();
      lock.lock();
      if (--busy == 0) work_done.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int num_threads) : state_(std::make_unique<State>()) {
  DSV4_CHECK(num_threads >= 1) << "num_threads " << num_threads;
  for (int i = 1; i < num_threads; ++i)
    state_->workers.emplace_back([state = state_.get()] { state->WorkerLoop(); });
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
  // Four chunks a thread: even out uneven iterations without much overhead.
  const int64_t chunk = std::max(grain, count / (4 * num_threads()));
  {
    const std::lock_guard lock(state_->mutex);
    state_->body = &body;
    state_->count = count;
    state_->chunk = chunk;
    state_->next = 0;
    state_->busy = static_cast<int>(state_->workers.size());
    ++state_->generation;
  }
  state_->work_ready.notify_all();
  state_->TakeChunks();
  std::unique_lock lock(state_->mutex);
  state_->work_done.wait(lock, [&] { return state_->busy == 0; });
}

}  // namespace dsv4
