// Check of weight scales for NaN and infinity, spread over the thread pool.
#include "model/checkpoint/scale_checks.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "base/thread_count.h"

namespace dsv4::model {
namespace {

// Bytes that one thread has read before others are awake.
constexpr int64_t kBytesOfOneThread = int64_t{1} << 20;
constexpr int kMostThreads = 32;

}  // namespace

void ScaleChecks::Add(const Weight& weight, const std::string& name) {
  if (weight.format == WeightFormat::kPlain) return;
  num_bytes_ += weight.scale.num_bytes();
  added_.push_back({weight, &name});
}

Status ScaleChecks::Finish() {
  const std::vector<Added> added = std::exchange(added_, {});
  const bool few = std::exchange(num_bytes_, 0) <= kBytesOfOneThread;
  std::vector<Status> found(added.size());
  const auto check = [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      found[i] = ValidateScaleValues(added[i].weight, *added[i].name);
  };
  if (few) {
    check(0, std::ssize(added));
  } else {
    if (threads_ == nullptr) {
      threads_ = std::make_unique<ThreadPool>(
          ThreadPoolOptions{.num_threads = CoresUpTo(kMostThreads), .spin = std::chrono::microseconds(0)});
    }
    threads_->ParallelFor(std::ssize(added), 1, check);
  }
  const auto wrong = std::ranges::find_if(found, [](const Status& status) { return !status.ok(); });
  return wrong == found.end() ? Status() : std::move(*wrong);
}

}  // namespace dsv4::model
