// BatchWorker: answers the batches of a store, one after the other, beside what clients wait for.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "server/batch/batch_store.h"
#include "server/http/http.h"

namespace dsv4::server {

class BatchWorker {
 public:
  // Service::HandleOfBatch.
  using Ask = std::function<std::unique_ptr<Reply>(HttpRequest request, uint64_t owner)>;
  // The store and what `ask` uses outlive it. `in_flight` requests are asked at one time.
  BatchWorker(BatchStore& store, Ask ask, int64_t in_flight);
  // Requests without an answer are asked again at the next start.
  ~BatchWorker();
  BatchWorker(const BatchWorker&) = delete;
  BatchWorker& operator=(const BatchWorker&) = delete;

 private:
  void Run();
  Status Answer(const BatchJob& job);

  BatchStore& store_;
  const Ask ask_;
  const int64_t in_flight_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace dsv4::server
