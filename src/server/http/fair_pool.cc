// FairPool's threads and whose turn it is.
#include "server/http/fair_pool.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <tuple>
#include <utility>

namespace dsv4::server {

FairPool::FairPool(Options options) : options_(options), num_threads_(std::max(options.num_threads, 1)) {
  // A thread that cannot be made ends those before it: a thread that is not joined would end the process.
  try {
    for (int i = 0; i < num_threads_; ++i) threads_.emplace_back([this] { Run(); });
    if (options_.trims_heap) threads_.emplace_back([this] { TrimHeap(); });
  } catch (...) {
    Join();
    throw;
  }
}

void FairPool::Post(uint64_t owner, uint64_t weight, std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    owners_[owner].waiting.push_back({weight, std::move(work)});
  }
  changed_.notify_all();  // One may be the thread that trims.
}

void FairPool::Join() {
  {
    const std::lock_guard lock(mutex_);
    joining_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

FairPool::Owners::iterator FairPool::Next() {
  const int most = std::max(1, num_threads_ - 1);
  auto next = owners_.end();
  for (auto it = owners_.begin(); it != owners_.end(); ++it) {
    const Owner& owner = it->second;
    if (owner.waiting.empty() || owner.running >= most) continue;
    const bool fits = options_.max_weight == 0 || running_ == 0 ||
                      weight_ + owner.waiting.front().weight <= options_.max_weight;
    if (!fits) continue;
    if (next == owners_.end() ||
        std::tie(owner.running, owner.served) < std::tie(next->second.running, next->second.served))
      next = it;
  }
  return next;
}

void FairPool::TrimHeap() {
  constexpr std::chrono::milliseconds kPause(100);  // Much work wants little trimming.
  std::unique_lock lock(mutex_);
  while (!joining_) {
    changed_.wait(lock, [&] { return worked_ || joining_; });
    worked_ = false;
    lock.unlock();
    ::malloc_trim(0);
    lock.lock();
    changed_.wait_for(lock, kPause, [&] { return joining_; });
  }
}

void FairPool::Run() {
  // A thread's own: Linux keeps it by thread. Where it is not allowed nothing is lost.
  if (options_.nice > 0) (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), options_.nice);
  std::unique_lock lock(mutex_);
  while (true) {
    const auto next = Next();
    if (next == owners_.end()) {
      const bool empty = std::all_of(owners_.begin(), owners_.end(),
                                     [](const auto& owner) { return owner.second.waiting.empty(); });
      if (joining_ && empty) return;
      changed_.wait(lock);
      continue;
    }
    const uint64_t owner = next->first;
    Work work = std::move(next->second.waiting.front());
    next->second.waiting.pop_front();
    ++next->second.running;
    next->second.served = ++turn_;
    weight_ += work.weight;
    ++running_;
    lock.unlock();
    work.run();
    work.run = nullptr;  // And what it holds.
    lock.lock();
    weight_ -= work.weight;
    --running_;
    worked_ = true;
    const auto done = owners_.find(owner);
    if (--done->second.running == 0 && done->second.waiting.empty()) owners_.erase(done);
    changed_.notify_all();
  }
}

}  // namespace dsv4::server
