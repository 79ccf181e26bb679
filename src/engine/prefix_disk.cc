#include "engine/prefix_disk.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <xxhash.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/prefix_file.h"

namespace dsv4::engine {
namespace {

// How often it is asked whether the origin is known.
constexpr std::chrono::milliseconds kAskAgain(20);

// Yields to the threads that compute the answers. It can only fail to be nicer.
void LowerPriority() { (void)::setpriority(PRIO_PROCESS, 0, 10); }  // Of this thread, on Linux.

// Hashes of ever longer beginnings of one list of tokens, as HashPrefixes has them.
class PrefixHasher {
 public:
  PrefixHasher(uint64_t salt, std::span<const int32_t> tokens) : state_(XXH3_createState()), tokens_(tokens) {
    if (state_ == nullptr) throw std::bad_alloc();
    XXH3_64bits_reset_withSeed(state_.get(), salt);
  }
  // `length` is at least that of the call before.
  uint64_t At(int64_t length) {
    const std::span<const int32_t> more =
        tokens_.subspan(static_cast<size_t>(length_), static_cast<size_t>(length - length_));
    XXH3_64bits_update(state_.get(), more.data(), more.size_bytes());
    length_ = length;
    return XXH3_64bits_digest(state_.get());
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
  std::span<const int32_t> tokens_;
  int64_t length_ = 0;
};

}  // namespace

struct PrefixDisk::Load {
  // Guarded by the disk's mutex.
  bool done = false;
  std::optional<Content> content;
};

PrefixDisk::PrefixDisk(PrefixDiskOptions options, Deserialize deserialize,
                       std::unique_ptr<PrefixCatalogue> catalogue)
    : options_(std::move(options)), deserialize_(std::move(deserialize)), catalogue_(std::move(catalogue)) {}

Result<std::unique_ptr<PrefixDisk>> PrefixDisk::Open(PrefixDiskOptions options, Deserialize deserialize) {
  if (options.max_bytes <= 0) {
    return Error(InvalidArgument(
        fmt::format("prefix cache on disk: a budget of {} bytes, wanted more than 0", options.max_bytes)));
  }
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<PrefixCatalogue> catalogue, PrefixCatalogue::Open(options.directory));
  DSV4_ASSIGN_OR_RETURN(const std::vector<CataloguedState> states, catalogue->All());
  std::unique_ptr<PrefixDisk> disk(
      new PrefixDisk(std::move(options), std::move(deserialize), std::move(catalogue)));
  for (const CataloguedState& state : states) disk->stats_.num_bytes += state.num_bytes;
  disk->stats_.num_rejected = disk->findings().num_damaged;
  DSV4_TRY(disk->MakeRoom(0));  // The budget may be smaller than the last time.
  disk->LearnOrigin();
  disk->writer_ = std::thread([raw = disk.get()] { raw->WriteLoop(); });
  disk->reader_ = std::thread([raw = disk.get()] { raw->ReadLoop(); });
  return disk;
}

PrefixDisk::~PrefixDisk() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  write_wanted_.notify_all();
  read_wanted_.notify_all();
  if (writer_.joinable()) writer_.join();
  if (reader_.joinable()) reader_.join();
}

void PrefixDisk::Enter(const std::shared_ptr<Entry>& entry) {
  entries_[entry->state.name] = entry;
  std::map<int64_t, int64_t>& lengths = lengths_[entry->state.salt];
  for (size_t i = 0; i < entry->state.hashes.size(); ++i) {
    by_hash_.emplace(entry->state.hashes[i], entry);
    ++lengths[entry->state.num_tokens - static_cast<int64_t>(i)];
  }
  stats_.num_states = static_cast<int64_t>(entries_.size());
}

void PrefixDisk::Leave(const std::string& name) {
  const auto place = entries_.find(name);
  if (place == entries_.end()) return;
  const std::shared_ptr<Entry> entry = place->second;
  entries_.erase(place);
  const auto lengths = lengths_.find(entry->state.salt);
  for (size_t i = 0; i < entry->state.hashes.size(); ++i) {
    const auto [begin, end] = by_hash_.equal_range(entry->state.hashes[i]);
    const auto same = std::find_if(begin, end, [&](const auto& other) { return other.second == entry; });
    if (same != end) by_hash_.erase(same);
    const auto count = lengths->second.find(entry->state.num_tokens - static_cast<int64_t>(i));
    if (--count->second == 0) lengths->second.erase(count);
  }
  if (lengths->second.empty()) lengths_.erase(lengths);
  stats_.num_states = static_cast<int64_t>(entries_.size());
}

PrefixDisk::Match PrefixDisk::Longest(uint64_t salt, std::span<const int32_t> tokens, int64_t at_most,
                                      bool written_only) const {
  Match best;
  const auto lengths = lengths_.find(salt);
  if (lengths == lengths_.end()) return best;
  PrefixHasher hasher(salt, tokens);
  for (const auto& [length, count] : lengths->second) {
    if (length > at_most) break;
    const auto [begin, end] = by_hash_.equal_range(hasher.At(length));
    for (auto candidate = begin; candidate != end; ++candidate) {
      const std::shared_ptr<Entry>& entry = candidate->second;
      const int64_t past = entry->state.num_tokens - length;
      if (entry->state.salt != salt || past < 0 || past > kDiskRewindTokens) continue;
      if (written_only && !entry->written) continue;
      // Of one length the state that needs the least taking back.
      if (best.length == length && best.entry->state.num_tokens <= entry->state.num_tokens) continue;
      best = {.entry = entry, .length = length};
    }
  }
  return best;
}

void PrefixDisk::Offer(uint64_t salt, std::span<const int32_t> tokens, const kv::SequenceState& state) {
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  DSV4_CHECK(num_tokens == state.length()) << num_tokens << " tokens, state of " << state.length();
  if (num_tokens < kMinGain) return;
  const int64_t num_bytes = kv::StateBytes(state.layout(), num_tokens);
  {
    const std::lock_guard lock(mutex_);
    if (disabled_) return;
    const int64_t gain = num_tokens - Longest(salt, tokens, num_tokens, /*written_only=*/false).length;
    if (gain < std::max(kMinGain, num_tokens / kMinGainShare)) return;
    if (!writes_.empty() && queued_bytes_ + num_bytes > options_.max_queued_bytes) {
      ++stats_.num_dropped;
      return;
    }
  }
  Result<kv::Snapshot> snapshot = state.Snapshot();
  if (!snapshot) return;  // In the middle of a failed step: nothing worth keeping.
  auto entry = std::make_shared<Entry>();
  entry->state = {.salt = salt, .num_tokens = num_tokens, .hashes = HashPrefixes(salt, tokens)};
  {
    const std::lock_guard lock(mutex_);
    if (disabled_) return;
    entry->state.origin = origin_.value_or(0);  // LearnOrigin names it anew.
    entry->state.name = PrefixFileName(entry->state.origin, salt, tokens);
    Enter(entry);
    queued_bytes_ += num_bytes;
    writes_.push_back({std::move(entry), {tokens.begin(), tokens.end()}, std::move(*snapshot), num_bytes});
  }
  write_wanted_.notify_one();
}

std::shared_ptr<PrefixDisk::Load> PrefixDisk::Find(uint64_t salt, std::span<const int32_t> prompt,
                                                   int64_t longer_than) {
  const int64_t usable = static_cast<int64_t>(prompt.size()) - 1;
  std::shared_ptr<Load> load;
  {
    const std::lock_guard lock(mutex_);
    const Match match = Longest(salt, prompt, usable, /*written_only=*/true);
    if (match.entry == nullptr || match.length <= longer_than) return nullptr;
    std::weak_ptr<Load>& running = loads_[match.entry->state.name];
    load = running.lock();
    if (load != nullptr) return load;
    load = std::make_shared<Load>();
    running = load;
    reads_.push_back({match.entry, load});
  }
  read_wanted_.notify_one();
  return load;
}

bool PrefixDisk::IsDone(const Load& load) const {
  const std::lock_guard lock(mutex_);
  return load.done;
}

std::optional<PrefixDisk::Loaded> PrefixDisk::Take(const Load& load) const {
  const std::lock_guard lock(mutex_);
  if (!load.content) return std::nullopt;
  return Loaded{.tokens = load.content->first, .state = load.content->second.Continue()};
}

void PrefixDisk::WaitForLoad(std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  load_done_.wait_for(lock, at_most, [&] { return num_loads_done_ != num_loads_seen_; });
  num_loads_seen_ = num_loads_done_;
}

void PrefixDisk::Tidy() {
  std::vector<WriteJob> spent;
  const std::lock_guard lock(mutex_);
  spent.swap(spent_);
}

bool PrefixDisk::DropQueue() {
  std::deque<WriteJob> dropped;
  std::vector<WriteJob> spent;
  const std::lock_guard lock(mutex_);
  spent.swap(spent_);
  dropped.swap(writes_);
  for (const WriteJob& job : dropped) {
    Leave(job.entry->state.name);
    queued_bytes_ -= job.num_bytes;
    ++stats_.num_dropped;
  }
  return !dropped.empty() || !spent.empty();
}

PrefixDiskStats PrefixDisk::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void PrefixDisk::Flush() {
  std::unique_lock lock(mutex_);
  write_done_.wait(lock, [&] { return writes_.empty() && chores_.empty() && !writing_; });
}

void PrefixDisk::WarnOnce(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(warned_, true)) return;
  }
  LogWarning(
      fmt::format("prefix cache on disk: {}; such failures are counted and not logged again until a file "
                  "is written",
                  status.ToString()));
}

// ---------------------------------------------------------------------------------------------------------------------
// Writing

Status PrefixDisk::MakeRoom(int64_t num_bytes) {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stats_.num_bytes + num_bytes <= options_.max_bytes) return {};
    }
    const Result<CataloguedState> oldest = catalogue_->Oldest();
    if (!oldest) return oldest.error();
    {
      const std::lock_guard lock(mutex_);
      Leave(oldest->name);
    }
    DSV4_RETURN_IF_ERROR(catalogue_->Remove(oldest->name));
    const std::lock_guard lock(mutex_);
    stats_.num_bytes -= oldest->num_bytes;
    ++stats_.num_evictions;
  }
}

bool PrefixDisk::LearnOrigin() {
  const Result<uint64_t> origin = options_.origin();
  if (!origin) {
    if (origin.error().code() != StatusCode::kUnavailable) Disable(origin.error());
    return false;
  }
  const Result<std::vector<CataloguedState>> states = catalogue_->All();
  if (!states) {
    Disable(states.error());
    return false;
  }
  const std::lock_guard lock(mutex_);
  origin_ = *origin;
  std::deque<WriteJob> offered = std::exchange(writes_, {});
  for (const WriteJob& job : offered) Leave(job.entry->state.name);
  for (const CataloguedState& state : *states) {
    if (state.origin == *origin) Enter(std::make_shared<Entry>(Entry{.state = state, .written = true}));
  }
  for (WriteJob& job : offered) {
    CataloguedState& state = job.entry->state;
    state.origin = *origin;
    state.name = PrefixFileName(*origin, state.salt, job.tokens);
    if (entries_.contains(state.name)) {  // It is there from an earlier run.
      queued_bytes_ -= job.num_bytes;
      spent_.push_back(std::move(job));
      continue;
    }
    Enter(job.entry);
    writes_.push_back(std::move(job));
  }
  LogInfo(
      fmt::format("prefix cache on disk: the weights are hashed; {} states are theirs", stats_.num_states));
  return true;
}

void PrefixDisk::Disable(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(disabled_, true)) return;
    entries_.clear();
    by_hash_.clear();
    lengths_.clear();
    stats_.num_states = 0;
    DropWrites();
  }
  write_done_.notify_all();
  LogWarning(fmt::format("prefix cache on disk: {}; no state is kept or reused until the next start",
                         why.ToString()));
}

void PrefixDisk::DropWrites() {
  stats_.num_dropped += static_cast<int64_t>(writes_.size());
  for (WriteJob& job : writes_) spent_.push_back(std::move(job));
  writes_.clear();
  queued_bytes_ = 0;
}

bool PrefixDisk::AwaitOrigin() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (origin_) return true;
      if (disabled_) return false;
      if (write_wanted_.wait_for(lock, kAskAgain, [&] { return stopping_; })) {
        if (writes_.empty()) return false;
        LogWarning(fmt::format(
            "prefix cache on disk: {} states are not kept: not all bytes of the weights were hashed "
            "when the model was done",
            writes_.size()));
        DropWrites();
        return false;
      }
    }
    LearnOrigin();
  }
}

Status PrefixDisk::Write(const WriteJob& job, uint64_t origin) {
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<std::byte> bytes,
                               job.snapshot.Serialize(origin, kDiskRewindTokens));
  CataloguedState state = job.entry->state;
  state.num_bytes = PrefixFileBytes(state.num_tokens, static_cast<int64_t>(bytes.size()));
  if (state.num_bytes > options_.max_bytes) {
    return ResourceExhausted(fmt::format("a state of {} tokens takes {} bytes, all may have {}",
                                         state.num_tokens, state.num_bytes, options_.max_bytes));
  }
  DSV4_RETURN_IF_ERROR(MakeRoom(state.num_bytes));
  DSV4_RETURN_IF_ERROR(WritePrefixFile(catalogue_->files(), state.name,
                                       {.origin = state.origin, .salt = state.salt, .tokens = job.tokens},
                                       bytes));
  if (Status status = catalogue_->Add(state); !status.ok()) {
    (void)catalogue_->Remove(state.name);
    return status;
  }
  const std::lock_guard lock(mutex_);
  job.entry->state.num_bytes = state.num_bytes;
  job.entry->written = true;
  stats_.num_bytes += state.num_bytes;
  ++stats_.num_written;
  warned_ = false;
  return {};
}

void PrefixDisk::WriteLoop() {
  LowerPriority();
  if (!AwaitOrigin()) {
    // No caller waits for a write any more.
    std::unique_lock lock(mutex_);
    write_wanted_.wait(lock, [&] { return stopping_; });
    return;
  }
  std::unique_lock lock(mutex_);
  for (;;) {
    write_wanted_.wait(lock, [&] { return stopping_ || !writes_.empty() || !chores_.empty(); });
    if (writes_.empty() && chores_.empty()) return;
    writing_ = true;
    const std::deque<Chore> chores = std::exchange(chores_, {});
    std::optional<WriteJob> job;
    if (!writes_.empty()) {
      job = std::move(writes_.front());
      writes_.pop_front();
    }
    lock.unlock();
    bool written = !job;
    try {
      for (const auto& [name, remove] : chores) {
        const Status status = remove ? catalogue_->Remove(name) : catalogue_->Touch(name);
        if (!status.ok()) WarnOnce(status);
      }
      // The files are looked at for every state: one of other bytes is never written.
      const Result<uint64_t> origin = options_.origin();
      if (!origin) Disable(origin.error());
      const Status status = job && origin ? Write(*job, *origin) : Status();
      if (!status.ok()) WarnOnce(status);
      written = !job || (origin && status.ok());
    } catch (
        const std::
            bad_alloc&) {  // Costs reuse, as a full disk does; what the catalogue lacks the next start finds.
    }
    lock.lock();
    writing_ = false;
    if (job) {
      queued_bytes_ = std::max<int64_t>(0, queued_bytes_ - job->num_bytes);
      if (!written) {
        Leave(job->entry->state.name);
        ++stats_.num_dropped;
      }
      spent_.push_back(std::move(*job));
    }
    write_done_.notify_all();
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Reading

Result<PrefixDisk::Content> PrefixDisk::Read(const Entry& entry, uint64_t origin) const {
  const std::string path = catalogue_->files() + "/" + entry.state.name;
  DSV4_ASSIGN_OR_RETURN(PrefixContent content, ReadPrefixFile(path));
  const PrefixKey& key = content.key;
  if (PrefixFileName(key.origin, key.salt, key.tokens) != entry.state.name) {
    return Error(DataLoss(path + ": holds another state than its name says"));
  }
  Result<kv::Snapshot> snapshot = deserialize_(content.snapshot, origin);
  if (!snapshot) return Error(snapshot.error().WithContext(path));
  if (snapshot->length() != static_cast<int64_t>(key.tokens.size())) {
    return Error(
        DataLoss(fmt::format("{}: {} tokens, state of {}", path, key.tokens.size(), snapshot->length())));
  }
  return Content(std::move(content.key.tokens), std::move(*snapshot));
}

// This file is not tried again.
void PrefixDisk::GiveUp(const Entry& entry, const Status& why) {
  if (why.code() == StatusCode::kResourceExhausted) return;  // Not the file's fault.
  // The disk's fault: the file may be good, and stays until the next start.
  const bool keep = why.code() == StatusCode::kUnavailable;
  {
    const std::lock_guard lock(mutex_);
    if (!entries_.contains(entry.state.name)) return;  // Evicted meanwhile.
    Leave(entry.state.name);
    if (!keep) {
      stats_.num_bytes -= entry.state.num_bytes;
      ++stats_.num_rejected;
      chores_.push_back({.name = entry.state.name, .remove = true});
    }
  }
  write_wanted_.notify_one();
  if (keep)
    WarnOnce(why);
  else
    LogWarning(fmt::format("prefix cache on disk: {}; removed", why.ToString()));
}

Result<PrefixDisk::Content> PrefixDisk::ReadOrGiveUp(const Entry& entry) {
  try {
    const Result<uint64_t> origin = options_.origin();
    if (!origin) {
      Disable(origin.error());
      return Error(origin.error());
    }
    Result<Content> content = Read(entry, *origin);
    if (!content) GiveUp(entry, content.error());
    return content;
  } catch (const std::bad_alloc&) {  // Not the file's fault.
    return Error(StatusCode::kResourceExhausted, {});
  }
}

void PrefixDisk::ReadLoop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    read_wanted_.wait(lock, [&] { return stopping_ || !reads_.empty(); });
    if (stopping_) return;
    ReadJob job = std::move(reads_.front());
    reads_.pop_front();
    if (job.load.use_count() > 1) {  // Else the caller has left.
      lock.unlock();
      Result<Content> content = ReadOrGiveUp(*job.entry);
      lock.lock();
      if (content) {
        ++stats_.num_read;
        stats_.num_read_tokens += static_cast<int64_t>(content->first.size());
        chores_.push_back({.name = job.entry->state.name});
        write_wanted_.notify_one();
        job.load->content = std::move(*content);
      }
    }
    job.load->done = true;
    loads_.erase(job.entry->state.name);
    // Under the mutex: if this is the last owner the state's pages are not shared; else the engine's thread drops it.
    job.load.reset();
    ++num_loads_done_;
    load_done_.notify_all();
  }
}

}  // namespace dsv4::engine
