// Answers: tokens that steps have chosen become events, and sequences end.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/speculator.h"
#include "engine/state_keeper.h"

namespace dsv4::engine {

class Answers {
 public:
  // All outlive it.
  Answers(EngineCore& core, StateKeeper& keeper, Speculator& speculator)
      : core_(core), keeper_(keeper), speculator_(speculator) {}

  // Puts a token that the backend has chosen into sequence.sampled; whether the one behind it may be taken
  // too.
  bool Take(Sequence& sequence, const model::ChosenToken& token) const;
  // Takes what was sampled and decides whether the sequence goes on.
  void Advance(Sequence& sequence, std::vector<Event>& events);
  void Finish(Sequence& sequence, FinishReason reason, Status status, int32_t stop_token,
              std::vector<Event>& events);
  void Fail(Sequence& sequence, Status status, std::vector<Event>& events) {
    Finish(sequence, FinishReason::kError, std::move(status), -1, events);
  }
  // Ends the requests whose prompts' states have come to the disk.
  void EndPublished(std::vector<Event>& events);
  // Ends sequences that were cancelled or abandoned, or whose time is over.
  void DropEnded(std::vector<Event>& events);

 private:
  void AdvanceBy(Sequence& sequence, Result<sampling::SampledToken>& token, std::vector<Event>& events);

  EngineCore& core_;
  StateKeeper& keeper_;
  Speculator& speculator_;
};

}  // namespace dsv4::engine
