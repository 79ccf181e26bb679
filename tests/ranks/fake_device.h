// A device that is none: host memory, and a thread that does a stream's work in order. The library
// libfake_nccl puts its exchanges onto it as NCCL puts its own onto a stream of CUDA's.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/device_stream.h"

namespace dsv4::testing {

class FakeStream {
 public:
  FakeStream() : worker_([this] { Work(); }) {}
  ~FakeStream() {
    Put([this] { done_ = true; });
    worker_.join();
  }

  void Put(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
      ++put_;
    }
    changed_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finished_ == put_; });
  }

 private:
  void Work() {
    while (!done_) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !tasks_.empty(); });
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
      ++finished_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  uint64_t put_ = 0;
  uint64_t finished_ = 0;
  bool done_ = false;  // The worker's.
  std::thread worker_;
};

class FakeDevice final : public comm::DeviceStream {
 public:
  // `waits`: Queue returns when the stream has done all, so that code for host memory sees the results.
  explicit FakeDevice(bool waits = false) : waits_(waits) {}

  FakeStream& stream() { return stream_; }

  Status Queue(const char*, const std::function<Status(void* stream)>& queue) override {
    const Status status = queue(&stream_);
    if (waits_) stream_.Wait();
    return status;
  }
  Result<std::byte*> Scratch(size_t num_bytes) override {
    stream_.Wait();
    scratch_.assign(num_bytes + 1, std::byte{0x5A});
    return scratch_.data();
  }
  Status CopyRows(std::byte* to, int64_t to_stride, const std::byte* from, int64_t from_stride,
                  int64_t row_bytes, int64_t num_rows) override {
    if (row_bytes == 0) return {};
    stream_.Put([=] {
      for (int64_t i = 0; i < num_rows; ++i)
        std::memcpy(to + i * to_stride, from + i * from_stride, static_cast<size_t>(row_bytes));
    });
    return {};
  }
  Status SumParts(const float* parts, int num_parts, int64_t count, float* sum) override {
    stream_.Put([=] {
      for (int64_t i = 0; i < count; ++i) {
        float total = parts[i];
        for (int part = 1; part < num_parts; ++part) total += parts[part * count + i];
        sum[i] = total;
      }
    });
    return {};
  }
  Result<uint64_t> Mark() override {
    stream_.Put([this, number = ++marked_] { reached_ = number; });
    return marked_;
  }
  uint64_t Reached() const override { return reached_; }

 private:
  const bool waits_;
  std::vector<std::byte> scratch_;
  uint64_t marked_ = 0;
  std::atomic<uint64_t> reached_ = 0;
  FakeStream stream_;  // The last, so that nobody works on the others when they go.
};

}  // namespace dsv4::testing
