// FairPool: threads that work for owners in turn, so that much work of one does not keep others waiting.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace dsv4::server {

// Thread-safe. Next is the owner with the least in progress, of several the one that was served longest ago. One owner never has all threads.
class FairPool {
 public:
  struct Options {
    int num_threads = 2;
    // Weight in progress together, in the unit of Post; one piece of work alone may be heavier. 0: any.
    uint64_t max_weight = 0;
    int nice = 0;  // By how much the threads stand back behind others of this process.
    // Free heap goes back to the system after work. A thread of its own sees to it, which does not stand back:
    // it holds the heap's locks.
    bool trims_heap = false;
  };
  explicit FairPool(Options options);
  ~FairPool() { Join(); }
  FairPool(const FairPool&) = delete;
  FairPool& operator=(const FairPool&) = delete;

  // `work` must not throw. Throws std::bad_alloc.
  void Post(uint64_t owner, uint64_t weight, std::function<void()> work);
  // Ends when everything that was posted is done. Nothing is posted any more.
  void Join();

 private:
  struct Work {
    uint64_t weight;
    std::function<void()> run;
  };
  struct Owner {
    std::deque<Work> waiting;
    int running = 0;
    uint64_t served = 0;  // The number of the turn.
  };
  using Owners = std::map<uint64_t, Owner>;

  void Run();
  void TrimHeap();
  Owners::iterator Next();

  const Options options_;
  const int
      num_threads_;  // The first threads run while later ones are made: threads_ is not theirs to look at.
  std::mutex mutex_;
  std::condition_variable changed_;
  Owners owners_;
  uint64_t turn_ = 0;
  uint64_t weight_ = 0;  // In progress.
  int running_ = 0;
  bool joining_ = false;
  bool worked_ = false;  // Since the heap was trimmed.
  std::vector<std::thread> threads_;
};

}  // namespace dsv4::server
