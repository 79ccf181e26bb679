// RunBatch: answers the requests of a batch, as many at a time as keep the engine's places taken.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "base/status.h"
#include "server/batch/batch_line.h"
#include "server/http/http.h"

namespace dsv4::server {

struct BatchWork {
  // Service::Handle, or what else answers a request.
  std::function<std::unique_ptr<Reply>(HttpRequest)> ask;
  // The next request; nullopt behind the last.
  std::function<Result<std::optional<BatchLine>>()> next;
  // Takes each answer once, in the order in which they come. An error ends the batch.
  std::function<Status(const BatchAnswer&)> put;
  // Asked several times a second: true gives up what is not answered.
  std::function<bool()> stop;
  int64_t in_flight = 1;  // Requests that are asked at one time.
};

// Calls all of them on this thread. A request that finds the queue full, or the server without memory, is
// asked again when others have their answers. Returns when all are answered, or with Cancelled when it was
// stopped.
Status RunBatch(const BatchWork& work);

}  // namespace dsv4::server
