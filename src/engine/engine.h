// Engine: requests in, events out. One thread calls Step in a loop. Each call runs one ragged batch of
// prefill chunks and decode tokens through the model. It samples for the sequences whose known tokens have
// all been read.
//
// A sequence's tokens depend on its request alone. Batch neighbours, chunk sizes, the time of admission,
// reuse of its prompt's beginning and preemption change nothing.
// Not thread-safe except where noted: one owner calls all functions. The model outlives the engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "engine/engine_options.h"
#include "engine/engine_stats.h"
#include "engine/request.h"
#include "engine/schedule/prefill_policy.h"
#include "model/runtime/model.h"

namespace dsv4::engine {

class Engine {
 public:
  // `allowed_tokens`: one entry per vocabulary id, 0 for ids that have no string and must not be sampled;
  // empty allows all.
  Engine(model::Model& model, EngineOptions options, std::vector<uint8_t> allowed_tokens);
  ~Engine();  // A step in flight is waited for.
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Answer that Submit would say; from any thread. InvalidArgument names the field; OutOfRange when the
  // prompt leaves no room in the context.
  Status Check(const Request& request) const;

  // Checks the request and queues it.
  Result<RequestId> Submit(Request request);

  // Finishes the request with kCancelled at the next Step; unknown or finished ids do nothing.
  void Cancel(RequestId id);

  // Runs one batch. Returns what happened, in order; an empty list when there is no work. A failing model
  // step finishes the requests of that batch with kError and its status, which names the op. Out of memory
  // with several sequences running, the youngest is preempted instead. Where the host's memory runs out in
  // the midst of it (std::bad_alloc), the requests that run are finished with kError and kUnavailable. It
  // throws only if there is no memory for these events; the next call then returns them.
  std::vector<Event> Step();

  // Asks since when events of each request wait to be taken; none: they do not. Before a step while there are
  // requests that wait for a place.
  using UnreadSince = std::function<std::optional<std::chrono::steady_clock::time_point>(RequestId)>;
  void SetUnread(const UnreadSince& since);
  bool has_waiting() const;

  // Gives back the kept states in memory; the next Step reports their number.
  void DropKeptStates();

  // PrefixStore::Blocks.
  std::vector<uint64_t> KeptBlocks() const;

  // Gives back all memory that running sequences and kept states have. The next Step finishes the requests
  // that ran, as above.
  void Abandon();

  bool idle() const;
  // Tokens that prompt and answer may have together: from any thread.
  int64_t context_length() const;
  EngineStats stats() const;
  // Knows the prices of steps.
  const PrefillPolicy& prefill_policy() const;

 private:
  struct Parts;  // Admission, keeper of states, speculator, and two steppers.

  void Step(std::vector<Event>& events);

  std::unique_ptr<Parts> parts_;
  RequestId next_id_ = 1;
  std::vector<Event> events_;  // Events of the step that runs, and of one that was abandoned.
};

}  // namespace dsv4::engine
