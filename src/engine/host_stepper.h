// HostStepper: steps of any mix of prompts and answers, which are waited for. Tokens are chosen on the
// backend where none takes more than its logits. Else the logits come to the host, which samples
// (host_stepper.cc, reading.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/admission.h"
#include "engine/schedule/scheduler.h"
#include "engine/stepper.h"

namespace dsv4::engine {

class HostStepper final : public Stepper {
 public:
  // All outlive it.
  HostStepper(EngineCore& core, StateKeeper& keeper, Admission& admission, Answers& answers,
              Speculator& speculator);

  // Verifies the drafts that the speculator has chosen.
  bool Step(std::vector<Event>& events) override;

 private:
  // One step: its chunks, and the sequences that they are parts of.
  struct Plan {
    std::vector<Pending> pending;
    std::vector<ScheduledChunk> schedule;
    std::vector<model::SequenceChunk> batch;
    int64_t num_rows = 0;

    // The chunk has all that its sequence knows: a token follows.
    bool IsLast(size_t chunk) const {
      return schedule[chunk].num_tokens == pending[schedule[chunk].sequence].num_tokens;
    }
    bool DecodesAlone() const;
  };

  Plan MakePlan();
  // Rows that each running sequence has to read.
  std::vector<Pending> Wanted() const;
  StepBudget Budget(std::span<const Pending> pending) const;
  // Tokens of each sequence. Where few rows have other bits than many, in pieces that have those of a run
  // alone (schedule/reading_pieces.h).
  std::vector<ScheduledChunk> Schedule(std::span<const Pending> pending) const;
  // Runs the step and chooses the tokens on the backend; false if that is not for these sequences, or cannot
  // be queued.
  Result<bool> RunOnBackend(const Plan& plan);
  bool MayChooseOnBackend(const Plan& plan) const;
  // Runs it, and samples on the host.
  Status RunOnHost(const Plan& plan);
  Result<model::StepOutput> Run(const Plan& plan);
  void SampleAll(const Plan& plan, const model::StepOutput& output);
  // Takes what came of one chunk.
  void Settle(const Plan& plan, size_t chunk, std::vector<Event>& events);

  EngineCore& core_;
  StateKeeper& keeper_;
  Admission& admission_;
  Answers& answers_;
  Speculator& speculator_;
};

}  // namespace dsv4::engine
