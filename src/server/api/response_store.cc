// Store of responses by id, bounded, by owner, in memory and in files.
#include "server/api/response_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <iterator>
#include <list>
#include <mutex>
#include <new>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "base/read_file.h"
#include "base/text.h"
#include "base/write_file.h"
#include "server/observe/random_id.h"

namespace dsv4::server {
namespace {

namespace fs = std::filesystem;
using chat::JsonValue;

constexpr std::string_view kPrefix = "resp_";
constexpr std::string_view kSuffix = ".json";
constexpr const char* kSecretFile = "secret";
// Turns of a conversation.
constexpr size_t kMostTurns = 10'000;

// Ids are names of files: only those that RandomId makes.
bool IsId(std::string_view id) {
  return id.starts_with(kPrefix) && id.size() > kPrefix.size() && id.size() < 100 &&
         std::ranges::all_of(id.substr(kPrefix.size()),
                             [](unsigned char c) { return std::isxdigit(c) != 0; });
}

// Text by text: a document would be a second copy of what has megabytes.
std::string WriteRecord(uint64_t owner, const StoredResponse& response) {
  std::string record = fmt::format(R"({{"owner": "{:016x}", "previous": {}, "input": )", owner,
                                   chat::QuoteJson(response.previous));
  const std::string input = chat::WriteJson(response.input);
  const std::string reply = chat::WriteJson(response.reply);
  record.reserve(record.size() + input.size() + reply.size() + 16);
  return record.append(input).append(R"(, "reply": )").append(reply).append("}");
}

// Nothing when it is another owner's, or damaged.
std::optional<StoredResponse> ReadRecord(uint64_t owner, std::string text) {
  Result<JsonValue> json = chat::TakeJson(std::move(text), "stored response");
  if (!json || !json->is_object()) return std::nullopt;
  const auto take = [&](std::string_view name) {
    const auto found = std::ranges::find(json->mutable_members(), name, &JsonValue::Member::first);
    return found == json->members().end() ? JsonValue() : std::exchange(found->second, {});
  };
  if (take("owner").text() != fmt::format("{:016x}", owner)) return std::nullopt;
  return StoredResponse{take("previous").text(), take("input"), take("reply")};
}

// How long a disk that failed is left alone.
constexpr std::chrono::seconds kTryAgain(1);

}  // namespace

std::string ItemId(std::string_view prefix, std::string_view response, size_t index) {
  return fmt::format("{}{}_{}", prefix, response.substr(kPrefix.size()), index);
}

std::string ResponseOfItem(std::string_view item) {
  const size_t begin = item.find('_') + 1;
  const size_t end = item.rfind('_');
  if (begin == 0 || end == std::string_view::npos || end < begin) return {};
  return fmt::format("{}{}", kPrefix, item.substr(begin, end - begin));
}

class ResponseStore::Impl {
 public:
  explicit Impl(ResponseStoreOptions options) : options_(std::move(options)) {}
  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (writer_.joinable()) writer_.join();
  }

  Status Open() {
    if (!on_disk()) {
      secret_ = RandomId("");
      return {};
    }
    std::error_code error;
    const bool made = fs::create_directories(options_.directory, error);
    if (error) return InvalidArgument(fmt::format("{}: {}", options_.directory, error.message()));
    if (made) fs::permissions(options_.directory, fs::perms::owner_all, error);
    DSV4_RETURN_IF_ERROR(ReadSecret());
    ReadDirectory();
    writer_ = std::thread([this] { WriteUntilStopped(); });
    return {};
  }

  bool enabled() const { return options_.max_bytes > 0; }
  const std::string& secret() const { return secret_; }

  void Put(uint64_t owner, const std::string& id, const StoredResponse& response) {
    if (!enabled() || !IsId(id)) return;
    std::string text = WriteRecord(owner, response);
    const auto size = static_cast<int64_t>(text.size());
    if (size > options_.max_bytes) {
      LogWarning(fmt::format("responses: {} has {}, more than all may have; it is not kept", id,
                             Counted(size, "byte")));
      return;
    }
    const std::lock_guard lock(mutex_);
    Forget(id);
    Add(id, size, std::move(text));
    while (num_bytes_ > options_.max_bytes) Forget(order_.back());
    if (on_disk()) queue_.push_back(id);
    changed_.notify_one();
  }

  Result<StoredResponse> Get(uint64_t owner, const std::string& id) {
    const auto missing = [&] {
      return Error(NotFound(fmt::format("response '{}' is not stored here (any more)", id)));
    };
    std::string text;
    {
      const std::lock_guard lock(mutex_);
      const auto found = entries_.find(id);
      if (found == entries_.end()) return missing();
      order_.splice(order_.begin(), order_, found->second.place);
      text = found->second.text;
    }
    if (text.empty()) {
      Result<std::string> file = ReadFile(PathOf(id), FileKind::kRegular);
      if (!file) return missing();
      text = std::move(*file);
      std::error_code ignored;
      fs::last_write_time(PathOf(id), fs::file_time_type::clock::now(), ignored);  // When it was used.
    }
    std::optional<StoredResponse> response = ReadRecord(owner, std::move(text));
    if (!response) return missing();
    return std::move(*response);
  }

  Status Erase(uint64_t owner, const std::string& id) {
    DSV4_ASSIGN_OR_RETURN_STATUS(const StoredResponse response, Get(owner, id));
    const std::lock_guard lock(mutex_);
    Forget(id);
    return {};
  }

 private:
  struct Entry {
    int64_t size = 0;
    std::string text;  // Empty: in its file.
    std::list<std::string>::iterator place;
  };

  bool on_disk() const { return !options_.directory.empty(); }
  std::string PathOf(const std::string& id) const {
    return (fs::path(options_.directory) / (id + std::string(kSuffix))).string();
  }

  void Add(const std::string& id, int64_t size, std::string text) {
    order_.push_front(id);
    entries_[id] = {.size = size, .text = std::move(text), .place = order_.begin()};
    num_bytes_ += size;
  }

  // By value: it may be an element of order_.
  void Forget(std::string id) {
    const auto found = entries_.find(id);
    if (found == entries_.end()) return;
    num_bytes_ -= found->second.size;
    order_.erase(found->second.place);
    entries_.erase(found);
    if (!on_disk()) return;
    std::error_code ignored;
    fs::remove(PathOf(id), ignored);
  }

  Status ReadSecret() {
    secret_ = RandomId("");
    DSV4_RETURN_IF_ERROR(WriteMissingSecret());
    DSV4_ASSIGN_OR_RETURN_STATUS(secret_, ReadFile(SecretPath(), FileKind::kRegular));
    return {};
  }

  std::string SecretPath() const { return (fs::path(options_.directory) / kSecretFile).string(); }

  // A folder that went away and came back has none, and its responses would have no owner.
  Status WriteMissingSecret() const {
    std::error_code ignored;
    return fs::exists(SecretPath(), ignored) ? Status() : WriteFile(SecretPath(), secret_, {.flush = false});
  }

  void ReadDirectory() {
    struct Found {
      fs::file_time_type used;
      std::string id;
      int64_t size;
    };
    std::vector<Found> found;
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(options_.directory, error)) {
      const std::string name = entry.path().filename().string();
      std::error_code ignored;
      if (name.ends_with(".part")) fs::remove(entry.path(), ignored);
      if (!name.ends_with(kSuffix) || !entry.is_regular_file(ignored)) continue;
      std::string id = name.substr(0, name.size() - kSuffix.size());
      if (IsId(id))
        found.push_back(
            {entry.last_write_time(ignored), std::move(id), static_cast<int64_t>(entry.file_size(ignored))});
    }
    std::ranges::sort(found, {}, &Found::used);
    for (const Found& one : found) Add(one.id, one.size, "");
    while (num_bytes_ > options_.max_bytes) Forget(order_.back());
  }

  void WriteUntilStopped() {
    for (;;) {
      try {
        return Write();
      } catch (const std::bad_alloc&) {  // Others give memory back.
        std::this_thread::sleep_for(kTryAgain);
      }
    }
  }

  void Write() {
    std::unique_lock lock(mutex_);
    for (bool last = false;;) {
      const auto wanted = [this] { return stopping_ || !queue_.empty(); };
      if (failed_.empty())
        changed_.wait(lock, wanted);
      else
        changed_.wait_for(lock, kTryAgain, wanted);
      if (queue_.empty()) {
        if (stopping_ && (last || failed_.empty())) break;
        last = stopping_;
        queue_.swap(failed_);
      }
      // Copied before it leaves the queue: where there is no memory for that, it is tried again.
      const std::string id = queue_.front();
      const auto found = entries_.find(id);
      const std::string text = found == entries_.end() ? std::string() : found->second.text;
      queue_.pop_front();
      if (found == entries_.end()) continue;
      lock.unlock();
      Status status = WriteMissingSecret();
      if (status.ok()) status = WriteFile(PathOf(id), text, {.flush = false});
      lock.lock();
      const auto now = entries_.find(id);
      if (now == entries_.end()) {  // Forgotten meanwhile.
        std::error_code ignored;
        fs::remove(PathOf(id), ignored);
      } else if (status.ok()) {
        now->second.text.clear();
        if (std::exchange(warned_, false)) LogWarning("responses: they can be written again");
      } else {
        // It stays in memory until it can be written, as do those behind it.
        queue_.push_front(id);
        std::ranges::move(queue_, std::back_inserter(failed_));
        queue_.clear();
        if (!std::exchange(warned_, true)) {
          LogWarning(fmt::format(
              "responses: {}; they stay in memory until they can be written, and this is not said again",
              status.message()));
        }
      }
    }
    if (!failed_.empty())
      LogWarning(fmt::format("responses: {} could not be written, and end with the server", failed_.size()));
  }

  const ResponseStoreOptions options_;
  std::string secret_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<std::string, Entry> entries_;
  std::list<std::string> order_;  // The most recently used first.
  int64_t num_bytes_ = 0;
  std::deque<std::string> queue_;   // To be written,
  std::deque<std::string> failed_;  // and to be tried again.
  bool warned_ = false;             // The disk fails; until it works again.
  bool stopping_ = false;
  std::thread writer_;
};

ResponseStore::ResponseStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ResponseStore::~ResponseStore() = default;

Result<std::unique_ptr<ResponseStore>> ResponseStore::Open(ResponseStoreOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  DSV4_TRY(impl->Open());
  return std::unique_ptr<ResponseStore>(new ResponseStore(std::move(impl)));
}

bool ResponseStore::enabled() const { return impl_->enabled(); }
const std::string& ResponseStore::secret() const { return impl_->secret(); }
void ResponseStore::Put(uint64_t owner, const std::string& id, const StoredResponse& response) {
  impl_->Put(owner, id, response);
}
Result<StoredResponse> ResponseStore::Get(uint64_t owner, const std::string& id) {
  return impl_->Get(owner, id);
}
Status ResponseStore::Erase(uint64_t owner, const std::string& id) { return impl_->Erase(owner, id); }

Result<std::vector<JsonValue>> ResponseStore::Conversation(uint64_t owner, const std::string& id) {
  std::vector<StoredResponse> turns;
  std::set<std::string> seen;
  for (std::string next = id; !next.empty(); next = turns.back().previous) {
    if (!seen.insert(next).second)
      return Error(InvalidArgument(fmt::format("response '{}' leads back to itself", next)));
    if (turns.size() == kMostTurns)
      return Error(InvalidArgument(fmt::format("more than {} turns lead to response '{}'", kMostTurns, id)));
    DSV4_ASSIGN_OR_RETURN(turns.emplace_back(), Get(owner, next));
  }
  std::vector<JsonValue> items;
  for (auto turn = turns.rbegin(); turn != turns.rend(); ++turn) {
    if (turn->input.is_array()) std::ranges::move(turn->input.mutable_items(), std::back_inserter(items));
    if (!turn->reply.is_object()) continue;
    for (auto& [name, output] : turn->reply.mutable_members()) {
      if (name == "output" && output.is_array())
        std::ranges::move(output.mutable_items(), std::back_inserter(items));
    }
  }
  return items;
}

}  // namespace dsv4::server
