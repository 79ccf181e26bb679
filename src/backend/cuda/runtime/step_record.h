// StepRecord: the queued work of one decode step, which can be queued again for other positions
// (ops/step_replay.h). It has its lists of launches in order, how each staged array follows from the step's
// arrays, and the numbers that steered launches.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "backend/cuda/runtime/device_queue.h"
#include "ops/step_replay.h"

namespace dsv4::backend::cuda {

// Bytes that a staged array takes: of one that grows, an eighth more at most.
size_t StagedCapacity(size_t num_bytes, StagedGrowth growth);

struct StepRecord {
  // How the queue was when the step began, as far as offsets and the lengths of lists follow from it, and
  // where the step ends.
  struct Setting {
    Staging::Position staging;
    uint64_t list_growth = 0;       // DeviceQueue::ListGrowth.
    const void* scratch = nullptr;  // The context's.
    ops::StepReplayer::End end;
    const void* fault = nullptr;  // Address at which the copy leaves the fault record.
    friend bool operator==(const Setting& a, const Setting& b) = default;
  };
  struct List {
    std::shared_ptr<const CudaGraph> graph;      // Or, of few launches,
    std::shared_ptr<const LaunchList> launches;  // what becomes none.
    size_t staged_begin = 0;                     // In the half.
    size_t staged_end = 0;
  };
  // Value derived from an array of the step: a number that steers launches, or staged bytes.
  struct Derived {
    size_t array = 0;
    StagedNumber number;
    int64_t value = 0;
    StagedFill fill;    // Without `number`.
    size_t offset = 0;  // In the half.
    size_t num_bytes = 0;
    StagedGrowth growth = StagedGrowth::kNone;
    const char* op = "";  // The one that asked for it.
  };

  Setting setting;
  std::shared_ptr<ops::StepArrays> arrays;
  std::vector<List> lists;
  std::vector<Derived>
      derived;  // In the order in which the walk asked for it, so that arrays mostly come one after the other.
  std::vector<Buffer> kept;  // Memory that the launches know.
  std::vector<OpRecord> last_ops;
  uint64_t num_ops = 0;
  uint64_t num_launches = 0;
  int64_t num_moves = 0;
  size_t staging_end = 0;
};

// Work that a replay would have queued, kept to be compared with the walk that follows (QueueOptions::check_replays).
struct ReplayForecast {
  std::vector<std::vector<std::byte>> lists;  // LaunchList::bytes of each.
  std::vector<std::byte> staged;              // From the record's first staged byte to its last.
};

// The records of a queue, by key. Used with the queue's mutex held.
class StepRecords {
 public:
  // Recording in progress.
  struct Recording {
    std::string key;
    std::unique_ptr<StepRecord> record;
    std::thread::id thread;
    const char* spoiled = nullptr;  // Why it is no record.
    bool ended = false;             // The copy has been started.
    bool known = false;             // Equal to a record that there is.
    uint64_t first_op = 0;
    uint64_t first_launch = 0;
    int64_t first_move = 0;
  };

  using Candidates = std::list<std::unique_ptr<StepRecord>>;
  // Records of `key`, the one used last first.
  Candidates& Of(std::string_view key);
  // Records that had to go for it. Records hold memory, which wants the queue's mutex to be freed: they go
  // when it is free.
  [[nodiscard]] std::vector<std::unique_ptr<StepRecord>> Add(std::string key,
                                                             std::unique_ptr<StepRecord> record);
  [[nodiscard]] std::vector<std::unique_ptr<StepRecord>> TakeAll();

  std::unique_ptr<Recording> recording;
  ops::ReplayCounters counters;
  std::unique_ptr<ReplayForecast> forecast;  // For the step that is walked next.

  // Lists handed over, ever, when the last copy to the host had started. Then the same when the last copy of
  // no bytes had handed over the lists behind it.
  int64_t lists_at_copy = -1;
  int64_t lists_behind = -1;

 private:
  // Records of one key: halves of staging memory and of the host's take turns, and so do numbers that steer
  // launches.
  static constexpr size_t kMaxOfKey = 16;
  // In all. Past it none is worth keeping: steps are ever new.
  static constexpr size_t kMaxRecords = 512;

  std::unordered_map<std::string, Candidates> records_;
  size_t num_records_ = 0;
};

}  // namespace dsv4::backend::cuda
