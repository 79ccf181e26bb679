// StepWatcher: sees the decode steps of an engine, the state before and the logits after. It changes nothing
// and must be quick: the engine waits for it.
#pragma once

#include <cstdint>
#include <span>

#include "engine/request.h"
#include "kv/sequence_state.h"

namespace dsv4::engine {

class StepWatcher {
 public:
  StepWatcher() = default;
  virtual ~StepWatcher() = default;
  StepWatcher(const StepWatcher&) = delete;
  StepWatcher& operator=(const StepWatcher&) = delete;

  // The next step reads `token` at position state.length(). Called once for every sequence that reads one
  // token, on the engine's thread; `state` is valid during the call.
  virtual void BeforeDecode(RequestId request, const kv::SequenceState& state, int32_t token) = 0;
  // Result of the step; empty when the step failed.
  virtual void AfterDecode(RequestId request, std::span<const float> logits) = 0;
};

}  // namespace dsv4::engine
