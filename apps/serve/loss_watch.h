// LossWatch: whether a running server has lost a rank or a file of its weights.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "base/status.h"
#include "comm/communicator.h"
#include "io/mapped_file.h"

namespace dsv4::apps {

// Looks after the other ranks, while no step does, and the files of weights: a server that has lost one can
// answer nothing and ends.
class LossWatch {
 public:
  // `group` may be null. `on_loss` is called once, on a thread of this object.
  LossWatch(comm::Communicator* group, std::function<void()> on_loss) {
    thread_ = std::thread([this, group, on_loss = std::move(on_loss)] {
      std::unique_lock lock(mutex_);
      while (!stopping_.wait_for(lock, std::chrono::milliseconds(100), [this] { return stopped_; })) {
        lost_ = io::LostFile();
        if (lost_.ok() && group != nullptr) lost_ = group->Check();
        if (!lost_.ok()) return on_loss();
      }
    });
  }
  ~LossWatch() { (void)Stop(); }
  LossWatch(const LossWatch&) = delete;
  LossWatch& operator=(const LossWatch&) = delete;

  // The loss, if there was one: DataLoss for a file.
  Status Stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    stopping_.notify_one();
    if (thread_.joinable()) thread_.join();
    return lost_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stopped_ = false;
  Status lost_;
  std::thread thread_;
};

}  // namespace dsv4::apps
