// A directory of prefix files that several servers share.
#include "engine/prefix_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <unordered_set>
#include <utility>

#include "base/log.h"
#include "base/read_file.h"
#include "base/text.h"
#include "base/write_file.h"

namespace dsv4::engine {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSecretBytes = 32;
constexpr int64_t kNanosecondsOfSecond = 1'000'000'000;
// Servers hold the lock while they list the files and remove some.
constexpr std::chrono::seconds kLockPatience(5);

Status DirectoryError(const std::string& path, std::string_view action, int error = errno) {
  return {StatusCode::kUnavailable, fmt::format("{}: {}: {}", path, action, std::strerror(error))};
}

// The lock of the directory. The file is opened anew each time: a directory that went away is not written to.
Result<Descriptor> LockDirectory(const std::string& directory, int flags) {
  Result<Descriptor> lock = LockFile(directory + "/lock", flags, 0600, kLockPatience);
  if (lock || lock.error().code() != StatusCode::kDeadlineExceeded) return lock;
  return Error(StatusCode::kDeadlineExceeded,
               lock.error().message() + "; a server of an older version uses a directory alone");
}

Result<std::vector<std::string>> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error))
    names.push_back(entry->path().filename().string());
  if (error)
    return Error(StatusCode::kUnavailable, fmt::format("{}: cannot list: {}", directory, error.message()));
  return names;
}

int64_t Nanoseconds(const timespec& time) { return time.tv_sec * kNanosecondsOfSecond + time.tv_nsec; }

}  // namespace

struct PrefixDirectory::Room {
  bool taken = false;     // The state is there, or being written: no room is wanted.
  bool is_there = false;  // The former.
  std::vector<std::string> evicted;
};

PrefixDirectory::PrefixDirectory(std::string directory)
    : directory_(std::move(directory)), files_(directory_ + "/states") {}

Result<std::unique_ptr<PrefixDirectory>> PrefixDirectory::Open(const std::string& directory,
                                                               int64_t max_bytes) {
  std::unique_ptr<PrefixDirectory> opened(new PrefixDirectory(directory));
  DSV4_TRY(opened->Prepare(max_bytes));
  return opened;
}

Status PrefixDirectory::Prepare(int64_t max_bytes) {
  std::error_code error;
  for (const std::string& path : {directory_, files_}) {
    fs::create_directories(path, error);
    if (!error) fs::permissions(path, fs::perms::owner_all, error);
    if (error) return {StatusCode::kUnavailable, fmt::format("{}: {}", path, error.message())};
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(const Descriptor lock, LockDirectory(directory_, O_CREAT));
  DSV4_RETURN_IF_ERROR(ReadSecret());
  // A table of earlier versions; the files say it all.
  for (const char* suffix : {"", "-wal", "-shm", "-journal"})
    ::unlink((directory_ + "/catalogue.sqlite" + suffix).c_str());
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<std::string> names, NamesIn(files_));
  findings_.num_foreign = std::ranges::count_if(
      names, [](const std::string& name) { return !IsPrefixFileName(name) && !IsUnfinishedName(name); });
  DSV4_ASSIGN_OR_RETURN_STATUS(const Room room, MakeRoom({}, 0, max_bytes));
  num_evicted_at_open_ = static_cast<int64_t>(room.evicted.size());
  return {};
}

Status PrefixDirectory::ReadSecret() {
  const std::string path = directory_ + "/secret";
  const auto is_whole = [&](const Result<std::string>& text) { return text && text->size() == kSecretBytes; };
  Result<std::string> text = ReadFile(path, FileKind::kRegular, kSecretBytes);
  if (!is_whole(text)) {
    secret_.resize(kSecretBytes);
    if (::getrandom(secret_.data(), secret_.size(), 0) != static_cast<ssize_t>(secret_.size()))
      return DirectoryError(path, "no random bytes");
    // Servers that come at once all take the first one's, also where locks do not hold. A damaged one is
    // replaced.
    DSV4_RETURN_IF_ERROR(
        WriteFile(path, secret_, {.keep_first = !text && text.error().code() == StatusCode::kNotFound}));
    text = ReadFile(path, FileKind::kRegular, kSecretBytes);
  }
  if (!is_whole(text)) return text ? DataLoss(path + ": not the secret of a prefix cache") : text.error();
  secret_ = *text;
  return {};
}

int64_t PrefixDirectory::NextUse() {
  timespec now = {};
  ::clock_gettime(CLOCK_REALTIME, &now);
  constexpr int64_t kTick = 1000;  // File systems count at least in these.
  int64_t last = last_use_;
  int64_t next = 0;
  do {
    next = std::max(Nanoseconds(now), last + kTick);
  } while (!last_use_.compare_exchange_weak(last, next));
  return next;
}

void PrefixDirectory::Know(const std::string& name, int64_t num_bytes) {
  const std::lock_guard lock(mutex_);
  if (known_.emplace(name, num_bytes).second) num_bytes_ += num_bytes;
}

void PrefixDirectory::Forget(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(name);
  if (found == known_.end()) return;
  num_bytes_ -= found->second;
  known_.erase(found);
}

Result<PrefixDirectory::Changes> PrefixDirectory::Look() {
  DSV4_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(files_));
  const std::unordered_set<std::string> present(names.begin(), names.end());
  Changes changes;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, num_bytes] : known_) {
      if (!present.contains(name)) changes.removed.push_back(name);
    }
  }
  for (const std::string& name : changes.removed) Forget(name);
  for (const std::string& name : names) {
    if (!IsPrefixFileName(name)) continue;
    {
      const std::lock_guard lock(mutex_);
      if (known_.contains(name)) continue;
    }
    const std::string path = PathOf(name);
    Result<PrefixFileHead> head = ReadPrefixFileHead(path);
    if (head && head->num_tokens > kDiskRewindTokens) {
      Know(name, head->num_bytes);
      changes.added.push_back(std::move(*head));
      continue;
    }
    const StatusCode code = head ? StatusCode::kDataLoss : head.error().code();
    if (code == StatusCode::kDataLoss) {
      LogWarning(fmt::format("prefix cache on disk: {}; removed",
                             head ? path + ": a state too short for a file" : head.error().ToString()));
      ++changes.num_damaged;
      ::unlink(path.c_str());
    } else if (code == StatusCode::kUnimplemented) {  // Another version's, which may use it.
      struct stat status = {};
      if (::lstat(path.c_str(), &status) == 0) Know(name, status.st_size);
    }  // Else the next look may find it.
  }
  return changes;
}

Result<PrefixDirectory::Room> PrefixDirectory::MakeRoom(const std::string& name, int64_t num_bytes,
                                                        int64_t max_bytes) {
  struct Found {
    int64_t used;
    std::string name;
    int64_t num_bytes;
  };
  DSV4_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(files_));
  Room room;
  std::vector<Found> found;
  int64_t all = 0;
  for (const std::string& other : names) {
    const bool is_state = IsPrefixFileName(other);
    if (!is_state && !IsUnfinishedName(other)) continue;
    struct stat status = {};
    if (::lstat(PathOf(other).c_str(), &status) != 0) continue;  // Removed meanwhile.
    if (!is_state && IsAbandoned(PathOf(other))) {
      ::unlink(PathOf(other).c_str());
      ++findings_.num_unfinished;
      continue;
    }
    room.is_there = room.is_there || other == name;
    room.taken = room.taken || other == name || (!name.empty() && IsUnfinishedNameOf(other, name));
    all += status.st_size;
    if (!is_state) continue;
    const int64_t used = Nanoseconds(status.st_mtim);
    found.push_back({used, other, status.st_size});
    int64_t last = last_use_;
    while (last < used && !last_use_.compare_exchange_weak(last, used)) {
    }
  }
  if (room.taken) return room;
  int64_t in_states = 0;
  for (const Found& file : found) in_states += file.num_bytes;
  if (num_bytes > 0 && all - in_states + num_bytes > max_bytes) {
    return Error(StatusCode::kResourceExhausted,
                 fmt::format("{}: servers are writing files of {}; with {} more they would pass the {} "
                             "that all may have",
                             files_, Counted(all - in_states, "byte"), num_bytes, max_bytes));
  }
  std::ranges::sort(found, {}, [](const Found& file) { return std::pair(file.used, file.name); });
  for (const Found& file : found) {
    if (all + num_bytes <= max_bytes) break;
    if (::unlink(PathOf(file.name).c_str()) != 0 && errno != ENOENT)
      return Error(DirectoryError(PathOf(file.name), "cannot remove"));
    Forget(file.name);
    all -= file.num_bytes;
    room.evicted.push_back(file.name);
  }
  return room;
}

Result<PrefixDirectory::Published> PrefixDirectory::Publish(const PrefixKey& key,
                                                            std::span<const std::byte> snapshot,
                                                            int64_t max_bytes) {
  const std::string name = PrefixFileName(key.origin, key.salt, key.tokens);
  Published published;
  published.num_bytes =
      PrefixFileBytes(static_cast<int64_t>(key.tokens.size()), static_cast<int64_t>(snapshot.size()));
  if (published.num_bytes > max_bytes) {
    return Error(StatusCode::kResourceExhausted,
                 fmt::format("a state of {} takes {}, all may have {}", Counted(key.tokens.size(), "token"),
                             Counted(published.num_bytes, "byte"), max_bytes));
  }
  DSV4_ASSIGN_OR_RETURN(Descriptor lock, LockDirectory(directory_, 0));
  DSV4_ASSIGN_OR_RETURN(Room room, MakeRoom(name, published.num_bytes, max_bytes));
  published.evicted = std::move(room.evicted);
  published.is_there = room.is_there;
  if (room.taken) return published;
  DSV4_ASSIGN_OR_RETURN(UnfinishedPrefixFile file,
                        UnfinishedPrefixFile::Create(files_, name, published.num_bytes));
  lock.Close();  // Others may make room while this one is written.
  DSV4_TRY(file.Write(key, snapshot, NextUse()));
  // A list that is made while a name changes may have both or none.
  DSV4_ASSIGN_OR_RETURN(lock, LockDirectory(directory_, 0));
  DSV4_TRY(file.Finish());
  Know(name, published.num_bytes);
  published.written = true;
  return published;
}

void PrefixDirectory::Touch(const std::string& name) {
  const int64_t used = NextUse();
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT},
                             {.tv_sec = used / kNanosecondsOfSecond, .tv_nsec = used % kNanosecondsOfSecond}};
  // A file that is gone needs no time.
  (void)::utimensat(AT_FDCWD, PathOf(name).c_str(), times, AT_SYMLINK_NOFOLLOW);
}

void PrefixDirectory::Remove(const std::string& name) {
  ::unlink(PathOf(name).c_str());
  Forget(name);
}

}  // namespace dsv4::engine
