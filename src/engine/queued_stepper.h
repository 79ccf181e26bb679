// QueuedStepper: steps that choose their tokens on the backend, queued ahead where no draft is verified (queued_stepper.cc).
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "engine/admission.h"
#include "engine/masks.h"
#include "engine/stepper.h"

namespace dsv4::engine {

class QueuedStepper final : public Stepper {
 public:
  // All outlive it.
  QueuedStepper(EngineCore& core, Admission& admission, Answers& answers, Speculator& speculator,
                Masks& masks);
  ~QueuedStepper() override;

  // With a step in flight: queues the one behind it, if it may, and takes what that one has given. False without one that a request wants.
  bool Continue(std::vector<Event>& events);
  // Starts to queue ahead, or runs the step that verifies drafts.
  bool Step(std::vector<Event>& events) override;
  // Waits for the step in flight and takes nothing of it.
  void Abandon();

 private:
  // A step that chooses its tokens on the backend, queued and not waited for.
  struct InFlight;

  bool QueuesAhead(std::vector<Event>& events);
  // Whether nothing is to be done before the next step is queued.
  bool MayContinue();
  // Sequences that read a token in the step behind that one, or in the first.
  std::vector<Sequence*> Next(const InFlight* before) const;
  // Queues a step of `sequences`, behind the one in flight if there is one; null if that fails.
  std::unique_ptr<InFlight> Queue(const std::vector<Sequence*>& sequences, const InFlight* before);
  // The tokens in front of the step's are known: queues its choice, where that takes more than logits. Drops the sequences that have ended,
  // and leaves those out whose tokens cannot be chosen.
  void ChooseTokens(InFlight& step, std::vector<Event>& events);
  // Its last token is read again later.
  void LeaveOut(Sequence* sequence, std::vector<Event>& events);
  // Waits for the step, and advances its sequences.
  void Settle(InFlight& step, std::vector<Event>& events);
  // Runs the step that verifies the chosen drafts, if it may choose its tokens on the backend as well.
  bool Verify(std::vector<Event>& events);

  EngineCore& core_;
  Admission& admission_;
  Answers& answers_;
  Speculator& speculator_;
  Masks& masks_;
  std::unique_ptr<InFlight> in_flight_;
  std::optional<std::chrono::steady_clock::time_point>
      settled_;  // When the step in front of the one in flight was.
};

}  // namespace dsv4::engine
