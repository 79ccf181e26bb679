// Number of threads that sample beside a backend.
#include "apps/shared/sampling_threads.h"

#include <algorithm>
#include <thread>

namespace dsv4::apps {
namespace {

// A row of logits comes from memory as fast as one core asks for it, and so many ask for what memory gives.
constexpr int kMostThreads = 8;

}  // namespace

SamplingThreads::SamplingThreads(ops::OpContext& context) : pool_(&context.threads()) {
  if (context.stream() == nullptr) return;  // It computes on the host.
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  own_ = std::make_unique<ThreadPool>(std::clamp(cores / 2, 1, kMostThreads));
  pool_ = own_.get();
}

}  // namespace dsv4::apps
