// A small thread pool for loops whose iterations are independent. The result never depends on the number of
// threads: callers split work only where each output element is computed by one iteration.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace dsv4 {

struct ThreadPoolOptions {
  int num_threads = 1;  // >= 1, counts the calling thread; 1 means no other thread is started.
  // How long idle threads watch for the next loop before they sleep. Default: 2 ms, or 0 with more threads
  // than cores, where a spinning thread keeps another from its work.
  std::optional<std::chrono::microseconds> spin;
  // CPUs by NUMA node. The pool's own threads are dealt out in proportion to the CPUs, each kept on those of
  // its node. Where the kernel refuses, and when empty, the kernel places them.
  std::vector<std::vector<int>> cpus_of_nodes;
};

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  explicit ThreadPool(const ThreadPoolOptions& options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // Calls body(begin, end) on disjoint ranges that cover [0, count), none shorter than `grain` except the
  // last. Returns when all are done, and throws the first exception of `body`. Ranges not begun by then are
  // left out. One ParallelFor at a time per pool; no nesting.
  void ParallelFor(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

 private:
  struct State;
  explicit ThreadPool(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace dsv4
