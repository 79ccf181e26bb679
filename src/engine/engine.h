// Engine: requests in, events out. One thread calls Step in a loop; each call runs one ragged batch of prefill chunks and decode
// tokens through the model and samples for the sequences that reached the end of what they know.
//
// A sequence's tokens depend on its request alone: not on its batch neighbours, the chunk sizes or when it was admitted.
// Not thread-safe: one owner calls all functions. The model outlives the engine.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/request.h"
#include "model/model.h"

namespace dsv4::engine {

struct EngineOptions {
  int64_t max_step_tokens = 512;  // Tokens of one batch, prefill and decode together.
  int max_sequences = 16;         // Sequences with a state at one time; further requests wait.
};

class Engine {
 public:
  // `allowed_tokens`: one entry per vocabulary id, 0 for ids that have no string and must not be sampled; empty allows all.
  Engine(model::Model& model, EngineOptions options, std::vector<uint8_t> allowed_tokens);
  ~Engine();

  // Checks the request and queues it. InvalidArgument names the field; OutOfRange when the prompt leaves no room in the context.
  Result<RequestId> Submit(Request request);

  // Finishes the request with kCancelled at the next Step; unknown or finished ids do nothing.
  void Cancel(RequestId id);

  // Runs one batch. Returns what happened, in order; an empty list when there is no work. A failing model step finishes the
  // requests of that batch with kError and its status, which names the op.
  std::vector<Event> Step();

  bool idle() const;

  // A copy of an unfinished request's state, for reuse as Request::prefix: what has been computed so far.
  Result<kv::SequenceState> ForkState(RequestId id) const;

 private:
  struct Sequence;

  void Admit(std::vector<Event>& events);
  void Finish(Sequence& sequence, FinishReason reason, Status status, int32_t stop_token,
              std::vector<Event>& events);
  // Samples from `logits` and decides whether the sequence goes on.
  void Advance(Sequence& sequence, std::span<const float> logits, std::vector<Event>& events);

  model::Model& model_;
  EngineOptions options_;
  std::vector<uint8_t> allowed_tokens_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;
  RequestId next_id_ = 1;
};

}  // namespace dsv4::engine
