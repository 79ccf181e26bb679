// States on disk: the queue of what is to be written, the index of what is there, and two threads.
#include "engine/prefix_disk.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "engine/prefix_file.h"

namespace dsv4::engine {
namespace {

// How often it is asked whether the origin is known.
constexpr std::chrono::milliseconds kAskAgain(20);

// How often the files of other servers are looked at while no prompt asks.
constexpr std::chrono::milliseconds kLookAgain(500);

// A disk that has not answered for so long, and for a file as long as a slow network takes, is not waited
// for.
constexpr std::chrono::seconds kDiskPatience(10);
constexpr int64_t kSlowBytesPerSecond = 20'000'000;

// States that are read for a prompt, one after the other, when files turn out to be damaged.
constexpr int kMaxReads = 3;

// Yields to the threads that compute the answers. It can only fail to be nicer.
void LowerPriority() { (void)::setpriority(PRIO_PROCESS, 0, 10); }  // Priority of this thread, on Linux.

}  // namespace

struct PrefixDisk::Load {
  // Guarded by the disk's mutex.
  bool done = false;
  std::shared_ptr<Content> content;
};

struct PrefixDisk::Publication {
  std::shared_ptr<Entry> entry;  // Null: it is not written.
  int64_t num_tokens = 0;
  std::chrono::steady_clock::time_point wanted_by;
};

PrefixDisk::PrefixDisk(PrefixDiskOptions options, Deserialize deserialize,
                       std::unique_ptr<PrefixDirectory> directory)
    : options_(std::move(options)), deserialize_(std::move(deserialize)), directory_(std::move(directory)) {}

Result<std::unique_ptr<PrefixDisk>> PrefixDisk::Open(PrefixDiskOptions options, Deserialize deserialize) {
  if (options.max_bytes <= 0) {
    return Error(InvalidArgument(fmt::format("prefix cache on disk: a budget of {}, wanted more than 0",
                                             Counted(options.max_bytes, "byte"))));
  }
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<PrefixDirectory> directory,
                        PrefixDirectory::Open(options.directory, options.max_bytes));
  std::unique_ptr<PrefixDisk> disk(
      new PrefixDisk(std::move(options), std::move(deserialize), std::move(directory)));
  disk->stats_.num_evictions = disk->directory_->num_evicted_at_open();
  disk->Look();
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

void PrefixDisk::EnterFile(const PrefixFileHead& head) {
  if (!origin_ || head.origin != *origin_ || disabled_) return;
  const auto found = entries_.find(head.name);
  if (found == entries_.end())
    Enter(std::make_shared<Entry>(Entry{.state = head, .written = true}));
  else
    found->second->written = true;  // Another server had it first.
}

void PrefixDisk::Leave(const std::string& name) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return;
  const std::shared_ptr<Entry> entry = found->second;
  entries_.erase(found);
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
      // Among those of one length the state that needs the least taking back.
      if (best.length == length && best.entry->state.num_tokens <= entry->state.num_tokens) continue;
      best = {.entry = entry, .length = length};
    }
  }
  return best;
}

void PrefixDisk::Offer(uint64_t salt, std::span<const int32_t> tokens, const kv::SequenceState& state) {
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  {
    const std::lock_guard lock(mutex_);
    const int64_t gain = num_tokens - Longest(salt, tokens, num_tokens, /*written_only=*/false).length;
    if (disabled_ || gain < std::max(kMinGain, num_tokens / kMinGainShare)) return;
    if (!writes_.empty() &&
        queued_bytes_ + kv::StateBytes(state.layout(), num_tokens) > options_.max_queued_bytes) {
      ++stats_.num_dropped;
      return;
    }
  }
  (void)Queue(salt, tokens, state, /*first=*/false);
}

std::shared_ptr<PrefixDisk::Entry> PrefixDisk::Queue(uint64_t salt, std::span<const int32_t> tokens,
                                                     const kv::SequenceState& state, bool first) {
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  DSV4_CHECK(num_tokens == state.length()) << num_tokens << " tokens, state of " << state.length();
  Result<kv::Snapshot> snapshot = state.Snapshot();
  if (!snapshot) return nullptr;  // In the middle of a failed step: nothing worth keeping.
  auto entry = std::make_shared<Entry>();
  entry->state = {.salt = salt, .num_tokens = num_tokens, .hashes = HashPrefixes(salt, tokens)};
  const int64_t num_bytes = kv::StateBytes(state.layout(), num_tokens);
  {
    const std::lock_guard lock(mutex_);
    if (disabled_) return nullptr;
    entry->state.origin = origin_.value_or(0);  // LearnOrigin names it anew.
    entry->state.name = PrefixFileName(entry->state.origin, salt, tokens);
    Enter(entry);
    queued_bytes_ += num_bytes;
    WriteJob job = {entry, {tokens.begin(), tokens.end()}, std::move(*snapshot), num_bytes};
    first ? writes_.push_front(std::move(job)) : writes_.push_back(std::move(job));
  }
  write_wanted_.notify_one();
  return entry;
}

std::shared_ptr<PrefixDisk::Publication> PrefixDisk::Publish(uint64_t salt, std::span<const int32_t> tokens,
                                                             const kv::SequenceState& state) {
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  auto publication = std::make_shared<Publication>();
  publication->wanted_by =
      std::chrono::steady_clock::now() + kDiskPatience +
      std::chrono::seconds(kv::StateBytes(state.layout(), num_tokens) / kSlowBytesPerSecond);
  {
    const std::lock_guard lock(mutex_);
    const Match match = Longest(salt, tokens, num_tokens, /*written_only=*/false);
    if (num_tokens < kMinGain || disabled_) return publication;
    if (num_tokens - match.length < kMinGain) {  // The match will do, as soon as it is written.
      publication->entry = match.entry;
      publication->num_tokens = match.length;
      return publication;
    }
  }
  publication->entry = Queue(salt, tokens, state, /*first=*/true);
  publication->num_tokens = num_tokens;
  return publication;
}

std::optional<int64_t> PrefixDisk::NumPublished(const Publication& publication) const {
  const std::lock_guard lock(mutex_);
  if (publication.entry == nullptr || publication.entry->failed || disabled_) return 0;
  if (publication.entry->written) return publication.num_tokens;
  if (std::chrono::steady_clock::now() > publication.wanted_by) return 0;
  return std::nullopt;
}

void PrefixDisk::WaitForWrite(std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  write_done_.wait_for(lock, at_most, [&] { return writes_.empty() && !writing_; });
}

std::shared_ptr<PrefixDisk::Load> PrefixDisk::Find(uint64_t salt, std::span<const int32_t> prompt,
                                                   int64_t longer_than) {
  if (static_cast<int64_t>(prompt.size()) - 1 <= longer_than) return nullptr;
  auto load = std::make_shared<Load>();
  {
    const std::lock_guard lock(mutex_);
    if (!origin_ || disabled_ || IsStuck()) return nullptr;
    reads_.push_back({salt, {prompt.begin(), prompt.end()}, longer_than, load});
    ++num_asked_;
  }
  read_wanted_.notify_one();
  return load;
}

bool PrefixDisk::IsStuck() const {
  return reader_wanted_back_ && std::chrono::steady_clock::now() > *reader_wanted_back_;
}

bool PrefixDisk::IsDone(const Load& load) const {
  const std::lock_guard lock(mutex_);
  return load.done || IsStuck();
}

std::optional<PrefixDisk::Loaded> PrefixDisk::Take(const Load& load) const {
  const std::lock_guard lock(mutex_);
  if (load.content == nullptr) return std::nullopt;
  return Loaded{.tokens = load.content->first, .state = load.content->second.Continue()};
}

void PrefixDisk::WaitForLoad(std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  load_done_.wait_for(lock, at_most, [&] { return num_loads_done_ != num_loads_seen_; });
  num_loads_seen_ = num_loads_done_;
}

void PrefixDisk::Tidy() {
  std::list<WriteJob> spent;
  const std::lock_guard lock(mutex_);
  spent.swap(spent_);
}

bool PrefixDisk::DropQueue() {
  std::list<WriteJob> dropped;
  std::list<WriteJob> spent;
  const std::lock_guard lock(mutex_);
  spent.swap(spent_);
  dropped.swap(writes_);
  for (const WriteJob& job : dropped) {
    if (!job.entry->written) Leave(job.entry->state.name);
    job.entry->failed = true;
    queued_bytes_ -= job.num_bytes;
    ++stats_.num_dropped;
  }
  return !dropped.empty() || !spent.empty();
}

PrefixDiskStats PrefixDisk::stats() const {
  const std::lock_guard lock(mutex_);
  PrefixDiskStats stats = stats_;
  stats.num_bytes = directory_->num_bytes();
  stats.is_ready = origin_.has_value() && !disabled_;
  return stats;
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

bool PrefixDisk::LearnOrigin() {
  const Result<uint64_t> origin = options_.origin();
  if (!origin) {
    if (origin.error().code() != StatusCode::kUnavailable) Disable(origin.error());
    return false;
  }
  const std::lock_guard lock(mutex_);
  try {
    EnterAll(*origin);
  } catch (const std::bad_alloc&) {  // Offered states are lost; the files are entered at the next try.
    ForgetAll();
    origin_.reset();
    return false;
  }
  LogInfo(fmt::format("prefix cache on disk: the weights are hashed; of these {} kept",
                      Counted(stats_.num_states, "state is", "states are")));
  return true;
}

void PrefixDisk::EnterAll(uint64_t origin) {
  origin_ = origin;
  for (const WriteJob& job : writes_) Leave(job.entry->state.name);
  for (const auto& [name, head] : files_) EnterFile(head);
  for (auto job = writes_.begin(); job != writes_.end();) {
    const auto next = std::next(job);
    PrefixFileHead& state = job->entry->state;
    state.origin = origin;
    state.name = PrefixFileName(origin, state.salt, job->tokens);
    if (entries_.contains(state.name)) {  // It is there from an earlier run.
      job->entry->written = true;
      queued_bytes_ -= job->num_bytes;
      spent_.splice(spent_.end(), writes_, job);
    } else {
      Enter(job->entry);
    }
    job = next;
  }
}

void PrefixDisk::ForgetAll() {
  entries_.clear();
  by_hash_.clear();
  lengths_.clear();
  stats_.num_states = 0;
  DropWrites();
}

void PrefixDisk::Disable(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(disabled_, true)) return;
    ForgetAll();
  }
  write_done_.notify_all();
  LogWarning(fmt::format("prefix cache on disk: {}; no state is kept or reused until the next start",
                         why.ToString()));
}

void PrefixDisk::DropWrites() {
  stats_.num_dropped += static_cast<int64_t>(writes_.size());
  for (const WriteJob& job : writes_) job.entry->failed = true;
  spent_.splice(spent_.end(), writes_);
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
        LogWarning(
            fmt::format("prefix cache on disk: {} not kept: not all bytes of the weights were hashed "
                        "when the model was done",
                        Counted(writes_.size(), "state is", "states are")));
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
  PrefixFileHead& state = job.entry->state;
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const PrefixDirectory::Published published,
      directory_->Publish({.origin = state.origin, .salt = state.salt, .tokens = job.tokens}, bytes,
                          options_.max_bytes));
  const std::lock_guard lock(mutex_);
  for (const std::string& name : published.evicted) {
    files_.erase(name);
    Leave(name);
    ++stats_.num_evictions;
  }
  if (published.written) {
    state.num_bytes = published.num_bytes;
    files_[state.name] = state;
    job.entry->written = true;
    job.entry->is_own = true;
    ++stats_.num_written;
  } else if (!job.entry->written) {
    Leave(state.name);  // Another server's; a look finds it when it is whole.
    job.entry->written = published.is_there;
    job.entry->failed = !published.is_there;
  }
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
    const std::list<Chore> chores = std::exchange(chores_, {});
    std::list<WriteJob> taken;  // One, or none.
    if (!writes_.empty()) taken.splice(taken.end(), writes_, writes_.begin());
    const WriteJob* const job = taken.empty() ? nullptr : &taken.front();
    lock.unlock();
    bool written = job == nullptr;
    try {
      for (const auto& [name, remove] : chores) remove ? directory_->Remove(name) : directory_->Touch(name);
      // The files are looked at for every state: one of other bytes is never written.
      const Result<uint64_t> origin = options_.origin();
      if (!origin) Disable(origin.error());
      const Status status = job != nullptr && origin ? Write(*job, *origin) : Status();
      if (!status.ok()) WarnOnce(status);
      written = job == nullptr || (origin && status.ok());
    } catch (const std::bad_alloc&) {  // Costs reuse, as a full disk does.
    }
    lock.lock();
    writing_ = false;
    if (job != nullptr) {
      queued_bytes_ = std::max<int64_t>(0, queued_bytes_ - job->num_bytes);
      if (!written) {
        if (!job->entry->written) Leave(job->entry->state.name);
        job->entry->failed = true;
        ++stats_.num_dropped;
      }
      spent_.splice(spent_.end(), taken);
    }
    write_done_.notify_all();
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Reading

Result<PrefixDisk::Content> PrefixDisk::Read(const Entry& entry, uint64_t origin) const {
  const std::string path = directory_->PathOf(entry.state.name);
  DSV4_ASSIGN_OR_RETURN(PrefixContent content, ReadPrefixFile(path));
  Result<kv::Snapshot> snapshot = deserialize_(content.snapshot, origin);
  if (!snapshot) return Error(snapshot.error().WithContext(path));
  if (snapshot->length() != static_cast<int64_t>(content.key.tokens.size())) {
    return Error(DataLoss(fmt::format("{}: {}, state of {}", path,
                                      Counted(content.key.tokens.size(), "token"), snapshot->length())));
  }
  return Content(std::move(content.key.tokens), std::move(*snapshot));
}

// This file is not tried again.
void PrefixDisk::GiveUp(const Entry& entry, const Status& why) {
  if (why.code() == StatusCode::kResourceExhausted) return;  // Not the file's fault.
  // The disk's fault: the file may be good, and stays until the next start. Or another server has removed it.
  const bool keep = why.code() == StatusCode::kUnavailable;
  const bool gone = why.code() == StatusCode::kNotFound;
  {
    const std::lock_guard lock(mutex_);
    if (!entries_.contains(entry.state.name)) return;  // Evicted meanwhile.
    Leave(entry.state.name);
    if (!keep) {
      if (!gone) ++stats_.num_rejected;
      files_.erase(entry.state.name);
      chores_.push_back({.name = entry.state.name, .remove = true});
    }
  }
  write_wanted_.notify_one();
  if (keep) WarnOnce(why);
  if (!keep && !gone) LogWarning(fmt::format("prefix cache on disk: {}; removed", why.ToString()));
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

void PrefixDisk::Look() {
  try {
    const Result<PrefixDirectory::Changes> changes = directory_->Look();
    if (!changes) return WarnOnce(changes.error());
    const std::lock_guard lock(mutex_);
    stats_.num_rejected += changes->num_damaged;
    for (const std::string& name : changes->removed) {
      files_.erase(name);
      const auto found = entries_.find(name);
      if (found != entries_.end() && found->second->written) Leave(name);
    }
    for (const PrefixFileHead& head : changes->added) {
      files_[head.name] = head;
      EnterFile(head);
    }
  } catch (const std::bad_alloc&) {  // Costs reuse; what was not entered is found by the next start.
  }
}

PrefixDisk::Match PrefixDisk::LongestFor(const ReadJob& job) const {
  Match match =
      Longest(job.salt, job.prompt, static_cast<int64_t>(job.prompt.size()) - 1, /*written_only=*/true);
  return match.length > job.longer_than ? std::move(match) : Match();
}

std::shared_ptr<PrefixDisk::Content> PrefixDisk::ReadFor(const ReadJob& job,
                                                         std::unique_lock<std::mutex>& lock) {
  for (int i = 0; i < kMaxReads; ++i) {
    const std::shared_ptr<Entry> entry = LongestFor(job).entry;
    if (entry == nullptr) break;
    reader_wanted_back_ = std::chrono::steady_clock::now() + kDiskPatience +
                          std::chrono::seconds(entry->state.num_bytes / kSlowBytesPerSecond);
    lock.unlock();
    Result<Content> content = ReadOrGiveUp(*entry);
    lock.lock();
    reader_wanted_back_.reset();
    if (!content) continue;
    ++stats_.num_read;
    stats_.num_read_tokens += static_cast<int64_t>(content->first.size());
    if (!entry->is_own) ++stats_.num_read_of_others;
    chores_.push_back({.name = entry->state.name});
    write_wanted_.notify_one();
    auto shared = std::make_shared<Content>(std::move(*content));
    // Others that wait for the same state.
    for (ReadJob& other : reads_) {
      if (other.load != nullptr && LongestFor(other).entry == entry) EndLoad(other, shared);
    }
    return shared;
  }
  return nullptr;
}

// Under the mutex: where this is the last owner the state's pages are not shared; else the engine's thread
// drops it.
void PrefixDisk::EndLoad(ReadJob& job, std::shared_ptr<Content> content) {
  job.load->content = std::move(content);
  job.load->done = true;
  job.load.reset();
  ++num_loads_done_;
  load_done_.notify_all();
}

void PrefixDisk::ReadLoop() {
  auto next_look = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  for (;;) {
    const bool asked = read_wanted_.wait_until(lock, next_look, [&] { return stopping_ || !reads_.empty(); });
    if (stopping_) return;
    if (!asked || num_asked_ - static_cast<int64_t>(reads_.size()) >= num_looked_) {
      // Finds what the others have written up to now.
      const int64_t num_asked = num_asked_;
      reader_wanted_back_ = std::chrono::steady_clock::now() + kDiskPatience;
      lock.unlock();
      Look();
      lock.lock();
      reader_wanted_back_.reset();
      num_looked_ = num_asked;
      next_look = std::chrono::steady_clock::now() + kLookAgain;
      continue;
    }
    ReadJob job = std::move(reads_.front());
    reads_.pop_front();
    if (job.load == nullptr) continue;  // Another's state was its own.
    std::shared_ptr<Content> content;
    try {
      if (job.load.use_count() > 1) content = ReadFor(job, lock);  // Else the caller has left.
    } catch (const std::bad_alloc&) {                              // Under the lock. Costs reuse.
    }
    EndLoad(job, std::move(content));
  }
}

}  // namespace dsv4::engine
