// A small thread pool for loops whose iterations are independent. The result never depends on the number of
// threads: callers split work only where each output element is computed by one iteration.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace dsv4 {

class ThreadPool {
 public:
  // num_threads >= 1 counts the calling thread; 1 means no other thread is started.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // Calls body(begin, end) on disjoint ranges that cover [0, count), none shorter than `grain` except the
  // last; returns when all are done. `body` must not throw. One ParallelFor at a time per pool; no nesting.
  void ParallelFor(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dsv4
