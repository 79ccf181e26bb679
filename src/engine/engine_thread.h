// EngineThread: runs an Engine on a thread of its own, so that any thread can submit requests and read their
// events.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/engine.h"

namespace dsv4::engine {

// One request in the engine. Destroying it cancels what is unfinished. Any thread, one at a time.
class Generation {
 public:
  virtual ~Generation() = default;
  // Events since the last call, in order; the last of all is kFinished.
  virtual std::vector<Event> Take() = 0;
  // `wake` is called, from the engine's thread and without locks, after events have arrived. It must outlive
  // nothing: it may be called until this object is destroyed. An earlier one is replaced; events that are
  // already there call it at once.
  virtual void OnEvents(std::function<void()> wake) = 0;
  // Ends the request with kCancelled within a step.
  virtual void Cancel() = 0;
};

struct EngineThreadOptions {
  // Requests that have not been admitted, of one owner alone. Beside others it may have fewer: owners share
  // room for half as many again. Owners that have none find room up to four times as many.
  int64_t max_waiting = 256;
};

// Result of one step, for metrics.
struct StepReport {
  double seconds = 0.0;
  int64_t num_sequences = 0;  // Running after the step.
  EngineStats stats;
};

class EngineThread {
 public:
  // `on_step` (may be empty) is called on the engine's thread after every step. The engine must not be used
  // by others from here on.
  EngineThread(std::unique_ptr<Engine> engine, EngineThreadOptions options,
               std::function<void(const StepReport&)> on_step);
  // Cancels what is unfinished; events still wake their readers.
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // Errors: those of Engine::Check; ResourceExhausted when too many requests wait. The generations may
  // outlive this object.
  Result<std::unique_ptr<Generation>> Submit(Request request);
  // Several that are admitted to the queue together or not at all.
  Result<std::vector<std::unique_ptr<Generation>>> SubmitAll(std::vector<Request> requests);

  // States that are kept for reuse in memory go before the next request is read.
  void DropKeptStates();

  // The blocks of kept states (EngineOptions::block_watcher). `beside` is called on the engine's thread at
  // the same moment. Waits for the step that runs. Empty when the thread ends.
  std::vector<uint64_t> KeptBlocks(std::function<void()> beside);

  int64_t context_length() const;
  EngineStats stats() const;
  // No request is waiting or running.
  bool idle() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace dsv4::engine
