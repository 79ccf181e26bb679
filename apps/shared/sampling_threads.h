// Threads that sample for several sequences at a time between steps of a model.
#pragma once

#include <memory>

#include "base/parallel.h"
#include "ops/op_context.h"

namespace dsv4::apps {

// Threads of the backend where it computes with them; where a device computes, up to eight of this machine's,
// which have nothing else to do.
class SamplingThreads {
 public:
  // The context outlives it.
  explicit SamplingThreads(ops::OpContext& context);

  ThreadPool& pool() { return *pool_; }

 private:
  std::unique_ptr<ThreadPool> own_;
  ThreadPool* pool_;
};

}  // namespace dsv4::apps
