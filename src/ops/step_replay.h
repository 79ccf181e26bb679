// Replaying a step: what a model's walk through the graph queued once is queued again without calling an op.
//
// From one decode step to the next the same launches come again, but for some small arrays. These are
// positions, slots of rows, page tables, and numbers drawn. The walk makes each of them by a function of the
// pass, a recipe. A replay makes it by the same function from the new pass. An op that reads numbers of such
// an array on the host derives them by functions of the array alone. A replay calls these too. It fills the
// device's copy again, and sees whether a number that steers launches is still the same. So the device gets
// the numbers that the walk would have sent. An array without a recipe, a wait, or memory that was allocated
// leaves this unknown, and the step is walked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "tensor/tensor.h"

namespace dsv4::ops {

// The arrays of one step, numbered in the order in which the walk made them.
class StepArrays {
 public:
  struct Array {
    const void* data = nullptr;
    size_t count = 0;
    size_t element_bytes = 0;
  };
  virtual ~StepArrays() = default;
  virtual size_t size() const = 0;
  // While the step is walked: the array that is these bytes, or -1. A part of one is none.
  virtual int64_t Find(std::span<const std::byte> bytes) const = 0;
  // Makes array i again, of the pass that is replayed. Borrowed until the next call.
  virtual Array Make(size_t i) = 0;
};

struct ReplayCounters {
  int64_t replayed = 0;  // Steps that were queued again from a record,
  int64_t walked = 0;    // and those that were not, though the backend could have.
  int64_t compared = 0;  // Walked steps that had the bytes of their replay, where each is compared.
  int64_t recorded = 0;  // Walked steps that left a record.
  const char* why_no_record = nullptr;  // Reason why the step walked last left no record; null: it left one.
};

// A backend that can replay. One step at a time.
class StepReplayer {
 public:
  virtual ~StepReplayer() = default;

  // How a step ends: Memory::StartCopyToHost.
  struct End {
    void* destination = nullptr;
    const void* source = nullptr;
    size_t num_bytes = 0;
    friend bool operator==(const End& a, const End& b) = default;
  };
  // Queues the step of `key` again, its copy to the host with it, where one was recorded that fits; `pass` is called with that one's arrays
  // before they are made. Null: none fits, and nothing was queued. `key`: all that steers the model's walk.
  virtual Result<std::unique_ptr<PendingCopy>> Replay(std::string_view key, const End& end,
                                                      const std::function<void(StepArrays&)>& pass) = 0;
  // Queued work of this thread from now on is the step of `key`, until its copy has been started; then
  // EndRecording.
  virtual void BeginRecording(std::string_view key, std::shared_ptr<StepArrays> arrays) = 0;
  // `queued`: the walk and its copy went well. The arrays' memory is free then.
  virtual void EndRecording(bool queued) = 0;

  // Ops from now on are no part of a step, until it is set back: their arrays are kept apart from those of steps.
  virtual Status SetBetweenSteps(bool between) = 0;

  virtual ReplayCounters replay_counters() const = 0;
};

}  // namespace dsv4::ops
