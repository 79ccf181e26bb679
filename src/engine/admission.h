// Admission: which waiting requests run, and which running sequences give way. It weighs fair shares of
// owners, priorities, memory, states that are being loaded, and prompts that are read together.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/answers.h"

namespace dsv4::engine {

class Admission {
 public:
  // All outlive it.
  Admission(EngineCore& core, StateKeeper& keeper, Answers& answers);

  void Add(std::unique_ptr<Sequence> sequence);
  // Preempts until the states of the running sequences are within the budget, then admits what may run.
  void Admit(std::vector<Event>& events);
  // Whether requests are to be admitted, or sequences to give way, before the next step.
  bool HasWork();
  // After a step ran out of memory. False when there is nothing to give up.
  bool FreeMemory();
  // After memory ran out one sequence more may run with every so many steps that found what they needed.
  void CountGoodStep();

 private:
  // A waiting request has a place and memory.
  bool MayAdmit() const;
  // Whether requests that could be admitted wait for others, to be read with them.
  bool HoldsPrompts();
  void MakeRoom();
  // Gives the waiting sequence a state, or ends it. False where there is no memory now.
  bool Enter(size_t chosen, std::vector<Event>& events);
  // Index of the waiting sequence to run next, or the number of those that wait.
  size_t ChooseWaiting();
  int64_t RunningOf(uint64_t owner) const;
  // Begins a turn: notes which owners have places.
  void CountTurn();
  // Its client does not take what there is for it.
  bool IsUnread(const Sequence& sequence) const;
  // Index of the running sequence that has not been read for longest, or the number of those that run.
  size_t LongestUnread() const;
  // Index of the running sequence that gives way when an owner with none running waits: the youngest, of those that have had their turn. Its
  // owner has most. One that is not read goes first, its owner's last one too. Where all owners have one, that which has run for longest. The
  // number of those that run when there is none, or no such owner.
  size_t ChooseToGiveWay() const;
  // Whether a running sequence is just computing what this one could reuse.
  bool WaitsForAnother(Sequence& sequence);
  void Preempt(size_t index);
  void LimitTo(int64_t num_running);

  EngineCore& core_;
  StateKeeper& keeper_;
  Answers& answers_;
  int64_t most_running_;  // Fewer than max_sequences after memory ran out.
  int64_t num_good_steps_ = 0;
  uint64_t turn_ = 0;
  std::unordered_map<uint64_t, uint64_t> turns_;  // By owner: when it had a place at last, else when it came.
};

}  // namespace dsv4::engine
