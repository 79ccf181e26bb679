// Record of a decode step's launch lists and staged arrays, and its replay with arrays made anew.
#include "backend/cuda/runtime/step_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/cuda/runtime/cuda_context.h"
#include "base/text.h"

namespace dsv4::backend::cuda {
namespace {

// The step's arrays as they are asked for, one at a time.
class ArrayReader {
 public:
  explicit ArrayReader(ops::StepArrays& arrays) : arrays_(arrays) {}
  const ops::StepArrays::Array& operator[](size_t i) {
    if (!made_ || i != number_) array_ = arrays_.Make(i);
    made_ = true;
    number_ = i;
    return array_;
  }

 private:
  ops::StepArrays& arrays_;
  bool made_ = false;
  size_t number_ = 0;
  ops::StepArrays::Array array_;
};

// Fills the half with the arrays of the step. False: a number steers otherwise than it did, or an array has
// another size. The written bytes are then of no use, and nothing has taken them.
bool Refill(const StepRecord& record, Staging& staging) {
  ArrayReader arrays(*record.arrays);
  for (const StepRecord::Derived& derived : record.derived) {
    const ops::StepArrays::Array& array = arrays[derived.array];
    if (derived.number) {
      if (derived.number(array.data, array.count) != derived.value) return false;
      continue;
    }
    const std::span<const std::byte> bytes = derived.fill(array.data, array.count);
    const size_t capacity = StagedCapacity(derived.num_bytes, derived.growth);
    const bool fits = derived.growth == StagedGrowth::kNone
                          ? bytes.size() == derived.num_bytes
                          : StagedCapacity(bytes.size(), derived.growth) == capacity;
    if (!fits) return false;
    std::byte* const place = staging.HostBytes(derived.offset);
    if (!bytes.empty()) std::memcpy(place, bytes.data(), bytes.size());
    std::memset(place + bytes.size(), 0, capacity - bytes.size());
  }
  return true;
}

std::span<const std::byte> LaunchBytes(const StepRecord::List& list) {
  return list.graph != nullptr ? std::span<const std::byte>(list.graph->bytes) : list.launches->bytes();
}

// Work that a replay of the record would queue, with its arrays in the half of staging memory.
std::unique_ptr<ReplayForecast> Forecast(const StepRecord& record, Staging& staging) {
  auto forecast = std::make_unique<ReplayForecast>();
  for (const StepRecord::List& list : record.lists) {
    const std::span<const std::byte> bytes = LaunchBytes(list);
    forecast->lists.emplace_back(bytes.begin(), bytes.end());
  }
  const size_t begin = record.setting.staging.used;
  forecast->staged.assign(staging.HostBytes(begin), staging.HostBytes(record.staging_end));
  return forecast;
}

// Says where the walked step is another than the forecast; empty: nowhere.
std::string Difference(const ReplayForecast& forecast, const StepRecord& walked, Staging& staging) {
  if (forecast.lists.size() != walked.lists.size())
    return fmt::format("it has {}, a walk has {}", Counted(forecast.lists.size(), "list"),
                       walked.lists.size());
  const size_t begin = walked.setting.staging.used;
  for (const StepRecord::Derived& derived : walked.derived) {
    if (derived.number) continue;
    const size_t from = derived.offset - begin;
    const size_t end = from + derived.num_bytes;
    if (end > forecast.staged.size())
      return fmt::format("an array of op {} is not among its bytes", derived.op);
    const std::byte* const bytes = staging.HostBytes(derived.offset);
    const auto [here, there] = std::mismatch(bytes, bytes + derived.num_bytes,
                                             forecast.staged.begin() + static_cast<ptrdiff_t>(from));
    if (here != bytes + derived.num_bytes)
      return fmt::format(
          "byte {} of an array of op {}, derived from array {} of the step, is {}, a walk has {}",
          here - bytes, derived.op, derived.array, static_cast<int>(*there), static_cast<int>(*here));
  }
  for (size_t i = 0; i < walked.lists.size(); ++i) {
    if (!std::ranges::equal(forecast.lists[i], LaunchBytes(walked.lists[i])))
      return fmt::format("launches of list {} of {} have other kernels, sizes or arguments", i,
                         walked.lists.size());
  }
  return "";
}

class QueueReplayer final : public ops::StepReplayer {
 public:
  QueueReplayer(DeviceQueue& queue, const Arena& scratch) : queue_(queue), scratch_(scratch) {}

  Result<std::unique_ptr<PendingCopy>> Replay(std::string_view key, const End& end,
                                              const std::function<void(ops::StepArrays&)>& pass) override {
    return queue_.Replay(key, end, Scratch(), pass);
  }
  void BeginRecording(std::string_view key, std::shared_ptr<ops::StepArrays> arrays) override {
    queue_.BeginRecording(key, std::move(arrays));
  }
  void EndRecording(bool queued) override { queue_.EndRecording(queued, Scratch()); }
  Status SetBetweenSteps(bool between) override { return queue_.SetBetweenSteps(between); }
  ops::ReplayCounters replay_counters() const override { return queue_.replay_counters(); }

 private:
  // A model whose ops use none has it in one allocation too.
  const void* Scratch() const { return scratch_.num_blocks() == 0 ? &scratch_ : scratch_.base(); }

  DeviceQueue& queue_;
  const Arena& scratch_;
};

}  // namespace

std::shared_ptr<ops::StepReplayer> CudaContext::MakeReplayer() {
  if (!queue_->asynchronous()) return nullptr;
  return std::make_shared<QueueReplayer>(*queue_, scratch_);
}

size_t StagedCapacity(size_t num_bytes, StagedGrowth growth) {
  if (growth == StagedGrowth::kNone) return Staging::Rounded(num_bytes);
  size_t step = Staging::Rounded(1);
  while (8 * step < num_bytes) step *= 2;
  return std::max(step, (num_bytes + step - 1) / step * step);
}

StepRecords::Candidates& StepRecords::Of(std::string_view key) {
  static Candidates none;
  const auto found = records_.find(std::string(key));
  return found == records_.end() ? none : found->second;
}

std::vector<std::unique_ptr<StepRecord>> StepRecords::Add(std::string key,
                                                          std::unique_ptr<StepRecord> record) {
  std::vector<std::unique_ptr<StepRecord>> gone;
  if (num_records_ >= kMaxRecords) gone = TakeAll();
  Candidates& of_key = records_[std::move(key)];
  of_key.push_front(std::move(record));
  ++num_records_;
  if (of_key.size() > kMaxOfKey) {
    gone.push_back(std::move(of_key.back()));
    of_key.pop_back();
    --num_records_;
  }
  return gone;
}

std::vector<std::unique_ptr<StepRecord>> StepRecords::TakeAll() {
  std::vector<std::unique_ptr<StepRecord>> all;
  for (auto& [key, of_key] : records_) {
    for (std::unique_ptr<StepRecord>& record : of_key) all.push_back(std::move(record));
  }
  records_.clear();
  num_records_ = 0;
  return all;
}

void DeviceQueue::DropRecords() {
  std::vector<std::unique_ptr<StepRecord>> all;  // They go last.
  const std::lock_guard lock(mutex_);
  all = records_->TakeAll();
  Spoil("what launches know has changed");
}

void DeviceQueue::Spoil(const char* why) {
  if (!recording_.load(std::memory_order_relaxed) || records_->recording->spoiled != nullptr) return;
  records_->recording->spoiled = why;
}

void DeviceQueue::SpoilIfForeign() {
  if (recording_.load(std::memory_order_relaxed) &&
      records_->recording->thread != std::this_thread::get_id()) {
    Spoil("another thread used the queue");
  }
}

void DeviceQueue::NoteStaged(size_t offset, size_t num_bytes, const StagedOrigin& origin) {
  if (!recording_.load(std::memory_order_relaxed)) return;
  StepRecord& record = *records_->recording->record;
  const int64_t array = origin.array.data() == nullptr ? -1 : record.arrays->Find(origin.array);
  if (array < 0 || !origin.fill) return Spoil("an array that is made in no known way");
  record.derived.push_back({.array = static_cast<size_t>(array),
                            .fill = origin.fill,
                            .offset = offset,
                            .num_bytes = num_bytes,
                            .growth = origin.growth,
                            .op = OpenOpName()});
}

void DeviceQueue::NoteNumber(std::span<const std::byte> array, StagedNumber number, int64_t value) {
  const std::lock_guard lock(mutex_);
  if (!recording_.load(std::memory_order_relaxed)) return;
  StepRecord& record = *records_->recording->record;
  const int64_t found = record.arrays->Find(array);
  if (found < 0) return Spoil("a number of an array that is made in no known way");
  record.derived.push_back(
      {.array = static_cast<size_t>(found), .number = std::move(number), .value = value, .op = OpenOpName()});
}

void DeviceQueue::Keep(const Buffer& buffer) {
  const std::lock_guard lock(mutex_);
  if (recording_.load(std::memory_order_relaxed)) records_->recording->record->kept.push_back(buffer);
}

// Before the list is cleared.
void DeviceQueue::NoteList(size_t num_staged_bytes, std::shared_ptr<const CudaGraph> graph) {
  if (!recording_.load(std::memory_order_relaxed)) return;
  StepRecord::List list;
  list.staged_end = staging_.position().used;
  list.staged_begin = list.staged_end - num_staged_bytes;
  if (graph != nullptr) {
    list.graph = std::move(graph);
  } else if (GraphCache::BecomesGraph(list_, options_.graphs)) {
    return Spoil("a list of launches that is no graph yet");
  } else {
    list.launches = std::make_shared<LaunchList>(list_);
  }
  records_->recording->record->lists.push_back(std::move(list));
}

// With the last list on its way, before the half of staging memory changes.
void DeviceQueue::NoteEnd(const ops::StepReplayer::End& end, const void* fault) {
  if (!recording_.load(std::memory_order_relaxed)) return;
  StepRecords::Recording& recording = *records_->recording;
  if (recording.ended) return Spoil("two copies to the host");
  if (num_open_ops_ > 0) return Spoil("another op is open");
  recording.ended = true;
  StepRecord& record = *recording.record;
  record.setting.end = end;
  record.setting.fault = fault;
  record.num_ops = num_recorded_ - recording.first_op;
  const uint64_t num_last = std::min<uint64_t>(record.num_ops, kJournalLength);
  for (uint64_t i = num_recorded_ - num_last; i < num_recorded_; ++i)
    record.last_ops.push_back(journal_[i % kJournalLength]);
  record.num_launches = num_launches_ - recording.first_launch;
  record.num_moves = num_moves_ - recording.first_move;
  record.staging_end = staging_.position().used;
}

Status DeviceQueue::CheckForecast() {
  const std::unique_ptr<ReplayForecast> forecast = std::move(records_->forecast);
  if (forecast == nullptr || !recording_.load(std::memory_order_relaxed)) return {};
  const StepRecords::Recording& walked = *records_->recording;
  if (walked.spoiled != nullptr) return {};  // A walk that allocates, where a replay has no need to.
  ++records_->counters.compared;
  records_->recording->known = true;
  const std::string difference = Difference(*forecast, *walked.record, staging_);
  return difference.empty() ? Status() : Internal("a replayed step would be wrong: " + difference);
}

void DeviceQueue::BeginRecording(std::string_view key, std::shared_ptr<ops::StepArrays> arrays) {
  const std::lock_guard lock(mutex_);
  if (records_->recording != nullptr) return Spoil("two threads record");
  LaunchPending();  // Nothing that was recorded before becomes part of the step.
  auto recording = std::make_unique<StepRecords::Recording>();
  recording->key = key;
  recording->record = std::make_unique<StepRecord>();
  recording->record->arrays = std::move(arrays);
  recording->record->setting.staging = staging_.position();
  recording->record->setting.list_growth = ListGrowth();
  recording->thread = std::this_thread::get_id();
  recording->first_op = num_recorded_;
  recording->first_launch = num_launches_;
  recording->first_move = num_moves_;
  if (list_.size() > 0 || staging_.HasNew() || num_open_ops_ > 0 || !large_arrays_.empty() || after_copy_)
    recording->spoiled = "launches that were queued before";
  records_->recording = std::move(recording);
  recording_ = true;
}

void DeviceQueue::EndRecording(bool queued, const void* scratch) {
  std::unique_ptr<StepRecords::Recording> recording;  // They go last.
  std::vector<std::unique_ptr<StepRecord>> gone;
  const std::lock_guard lock(mutex_);
  ops::ReplayCounters& counters = records_->counters;
  ++counters.walked;
  if (records_->recording == nullptr || records_->recording->thread != std::this_thread::get_id()) return;
  recording = std::move(records_->recording);
  recording_ = false;
  if (!queued) recording->spoiled = "an error";
  if (recording->spoiled == nullptr && !recording->ended)
    recording->spoiled = "a copy to memory that is not pinned";
  if (recording->spoiled == nullptr && scratch == nullptr)
    recording->spoiled = "scratch memory in several places";
  counters.why_no_record = recording->spoiled;
  if (recording->spoiled != nullptr || recording->known) return;
  ++counters.recorded;
  recording->record->setting.scratch = scratch;
  gone = records_->Add(std::move(recording->key), std::move(recording->record));
}

Result<std::unique_ptr<PendingCopy>> DeviceQueue::Replay(std::string_view key,
                                                         const ops::StepReplayer::End& end,
                                                         const void* scratch,
                                                         const std::function<void(ops::StepArrays&)>& pass) {
  {
    const std::lock_guard lock(mutex_);
    if (records_->Of(key).empty()) return std::unique_ptr<PendingCopy>();
  }
  DSV4_ASSIGN_OR_RETURN(Buffer fault, AllocateOnHost(sizeof(Fault)));
  *static_cast<Fault*>(fault.data()) = {};
  const std::lock_guard lock(mutex_);
  DSV4_TRY(Enter());
  records_->forecast = nullptr;
  LaunchPending();  // Work that ops left for later ones to fuse with is in front of the step, and knows nothing of it.
  const bool idle = list_.size() == 0 && !staging_.HasNew() && num_open_ops_ == 0 && large_arrays_.empty() &&
                    !after_copy_ && refused_.ok() && !recording_;
  if (!idle) return std::unique_ptr<PendingCopy>();
  const StepRecord::Setting setting = {.staging = staging_.position(),
                                       .list_growth = ListGrowth(),
                                       .scratch = scratch,
                                       .end = end,
                                       .fault = fault.data()};
  DSV4_TRY(Check(staging_.AwaitHalf(), "staging of a step's arrays"));
  StepRecords::Candidates& candidates = records_->Of(key);
  const auto found = std::ranges::find_if(candidates, [&](const std::unique_ptr<StepRecord>& candidate) {
    if (candidate->setting != setting) return false;
    pass(*candidate->arrays);
    return Refill(*candidate, staging_);
  });
  if (found == candidates.end()) return std::unique_ptr<PendingCopy>();
  const StepRecord& record = **found;
  candidates.splice(candidates.begin(), candidates, found);
  if (options_.check_replays) {
    records_->forecast = Forecast(record, staging_);
    return std::unique_ptr<PendingCopy>();
  }

  staging_.GoOnFrom(record.staging_end);
  num_recorded_ += record.num_ops;
  for (size_t i = 0; i < record.last_ops.size(); ++i)
    journal_[(num_recorded_ - record.last_ops.size() + i) % kJournalLength] = record.last_ops[i];
  num_launches_ += record.num_launches;
  num_moves_ += record.num_moves;
  for (const StepRecord::List& list : record.lists) {
    if (options_.watch) {
      const std::byte* const staged = staging_.HostBytes(list.staged_begin);
      options_.watch(LaunchBytes(list), {staged, list.staged_end - list.staged_begin});
    }
    const cudaError_t error = list.graph != nullptr ? graphs_.RunAgain(*list.graph, stream_)
                                                    : graphs_.RunAgain(*list.launches, stream_);
    ++lists_since_wait_;
    DSV4_TRY(Check(error, "launches of a step that is replayed"));
  }
  ++records_->counters.replayed;
  return CopyStarted(std::move(fault));
}

ops::ReplayCounters DeviceQueue::replay_counters() const {
  const std::lock_guard lock(mutex_);
  return records_->counters;
}

}  // namespace dsv4::backend::cuda
