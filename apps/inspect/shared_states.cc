// Findings about a folder of shared states: its storage, that storage's rules, writers and room.
#include "apps/inspect/shared_states.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include "apps/terminal/readable.h"
#include "base/descriptor.h"
#include "base/text.h"
#include "base/write_file.h"
#include "engine/prefix_file.h"

namespace dsv4::apps {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSecond = 1'000'000'000;
// Servers hold the lock while they list files; an older version's server holds it as long as it runs.
constexpr std::chrono::seconds kLockPatience(2);

std::string Reason(std::string_view action) { return fmt::format("{}: {}", action, std::strerror(errno)); }

// ---------------------------------------------------------------------------------------------------------------------
// Storage

struct Mount {
  std::string point;
  std::string type;
  std::vector<std::string> options;

  // Value of `name=...`, or an empty text of a bare `name`; nothing without it.
  std::optional<std::string> Option(std::string_view name) const {
    for (const std::string& option : options) {
      if (option == name) return "";
      if (option.size() > name.size() && option.starts_with(name) && option[name.size()] == '=')
        return option.substr(name.size() + 1);
    }
    return std::nullopt;
  }
};

// Spaces and backslashes stand as octal numbers in /proc/self/mountinfo.
std::string Unescaped(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escaped = text[i] == '\\' && i + 3 < text.size() &&
                         std::all_of(text.begin() + static_cast<ptrdiff_t>(i) + 1,
                                     text.begin() + static_cast<ptrdiff_t>(i) + 4,
                                     [](char digit) { return digit >= '0' && digit <= '7'; });
    plain += escaped ? static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8)) : text[i];
    if (escaped) i += 3;
  }
  return plain;
}

void AddOptions(const std::string& list, std::vector<std::string>& options) {
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) options.push_back(word);
}

// The mount that holds `path`, which is absolute and has no links.
std::optional<Mount> MountOf(const std::string& path) {
  std::ifstream table("/proc/self/mountinfo");
  std::optional<Mount> best;
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string ignored, point, options, word, type, source, more;
    words >> ignored >> ignored >> ignored >> ignored >> point >> options;
    while (words >> word && word != "-") continue;
    words >> type >> source >> more;
    point = Unescaped(point);
    const std::string folder = point.ends_with('/') ? point : point + "/";
    if (!(path + "/").starts_with(folder)) continue;
    if (best && best->point.size() > point.size()) continue;  // The last of equals covers the others.
    best = Mount{.point = point, .type = type, .options = {}};
    AddOptions(options, best->options);
    AddOptions(more, best->options);
  }
  return best;
}

bool IsCommon(std::string_view type) {
  constexpr std::array kCommon = {"nfs",  "nfs4", "ceph",     "lustre", "gpfs", "beegfs", "cifs",
                                  "smb3", "9p",   "virtiofs", "ocfs2",  "gfs2", "afs",    "orangefs"};
  return std::ranges::find(kCommon, type) != kCommon.end() || type.starts_with("fuse.");
}

Finding Storage(const std::string& path) {
  const std::optional<Mount> mount = MountOf(path);
  if (!mount)
    return {"their storage", Verdict::kNote, "which it is cannot be read from /proc/self/mountinfo"};
  std::string text = fmt::format("{} at {}", mount->type, mount->point);
  if (!IsCommon(mount->type))
    return {"their storage", Verdict::kOk, text + ": servers of this machine alone share it"};
  text += ", which other machines may have too";
  std::vector<std::string> notes;
  const auto local = mount->Option("local_lock");
  if (mount->Option("nolock") || mount->Option("localflock") || (local && *local != "none"))
    notes.emplace_back("its locks hold on one machine: bytes of all can pass --prefix-cache-disk-mib");
  for (const char* name : {"acdirmax", "actimeo"}) {
    const auto seconds = mount->Option(name);
    if (seconds && *seconds != "0" && !mount->Option("noac"))
      notes.push_back(fmt::format("{}={}: others see a new state that many seconds late", name, *seconds));
  }
  if (notes.empty()) return {"their storage", Verdict::kOk, text};
  return {"their storage", Verdict::kNote, fmt::format("{}; {}", text, fmt::join(notes, "; "))};
}

// ---------------------------------------------------------------------------------------------------------------------
// Rules of a storage

// Steps of a state's way to its name, on a file of a name that no server knows. Empty: all as it should be.
std::string Rehearse(const std::string& part, const std::string& whole, double& flush_seconds) {
  Descriptor file(::open(part.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.get() < 0) return Reason("no file can be made");
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return Reason("it does not know locks (flock)");
  const Descriptor other(::open(part.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (other.get() < 0) return Reason("a new file cannot be opened again");
  if (::flock(other.get(), LOCK_EX | LOCK_NB) == 0)
    return "its locks (flock) keep no other off: files of live writers would be removed";
  const std::string text(4096, 's');
  const Status written = WriteAll(file.get(), text, "writing");
  if (!written.ok()) return written.message();
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT},
                             {.tv_sec = 1'800'000'000, .tv_nsec = 123'456'000}};
  if (::futimens(file.get(), times) != 0) return Reason("times of files cannot be set");
  const auto begin = std::chrono::steady_clock::now();
  if (::fsync(file.get()) != 0) return Reason("fsync");
  if (::rename(part.c_str(), whole.c_str()) != 0) return Reason("rename");
  const Status synced = SyncDirectory(fs::path(whole).parent_path().string());
  if (!synced.ok()) return synced.message();
  flush_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  struct stat status = {};
  if (::lstat(part.c_str(), &status) == 0) return "rename leaves the old name";
  if (::lstat(whole.c_str(), &status) != 0) return Reason("rename leaves no new name");
  if (status.st_size != static_cast<off_t>(text.size()))
    return fmt::format("a file of {} has {} after its rename", Counted(text.size(), "byte"), status.st_size);
  const int64_t apart =
      (status.st_mtim.tv_sec - times[1].tv_sec) * kSecond + status.st_mtim.tv_nsec - times[1].tv_nsec;
  if (apart <= -kSecond || apart >= kSecond) return "it changes the times of files";
  std::string read(text.size(), '\0');
  if (::pread(other.get(), read.data(), read.size(), 0) != static_cast<ssize_t>(read.size()) || read != text)
    return "another reader does not get what was written";
  file.Close();  // As the death of its writer does.
  if (::flock(other.get(), LOCK_EX | LOCK_NB) != 0) return Reason("a dead writer's lock stays");
  const std::string first = whole + ".first";
  const bool linked = ::link(whole.c_str(), first.c_str()) == 0;
  const std::string no_link = linked ? "" : Reason("no second name for a file (link)");
  ::unlink(first.c_str());
  return no_link;
}

Finding Rules(const std::string& directory) {
  const std::string part = fmt::format("{}/.doctor-{}-{}.part", directory, ::getpid(),
                                       std::chrono::system_clock::now().time_since_epoch().count());
  const std::string whole = part.substr(0, part.size() - 5);
  double seconds = 0;
  const std::string problem = Rehearse(part, whole, seconds);
  ::unlink(part.c_str());
  ::unlink(whole.c_str());
  if (!problem.empty()) return {"its rules", Verdict::kMissing, problem};
  return {"its rules", Verdict::kOk,
          fmt::format("locks, names, times and flushes are kept; a flush takes {:.1f} ms", 1000 * seconds)};
}

// ---------------------------------------------------------------------------------------------------------------------
// Files

struct Files {
  int64_t num_states = 0;
  int64_t num_bytes = 0;  // All files, begun ones too.
  int64_t num_begun = 0;
  int64_t num_abandoned = 0;
  int64_t num_foreign = 0;
};

Files Count(const std::string& folder) {
  Files files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool is_state = engine::IsPrefixFileName(name);
    const bool is_begun = engine::IsUnfinishedName(name);
    struct stat status = {};
    if (::lstat(entry->path().c_str(), &status) != 0) continue;  // Removed meanwhile.
    if (is_state || is_begun) files.num_bytes += status.st_size;
    files.num_states += is_state ? 1 : 0;
    files.num_foreign += is_state || is_begun ? 0 : 1;
    if (is_begun) ++(engine::IsAbandoned(entry->path().string()) ? files.num_abandoned : files.num_begun);
  }
  return files;
}

Finding Leases(const std::string& directory, Files& files) {
  const Result<Descriptor> lock = LockFile(directory + "/lock", 0, 0600, kLockPatience);
  if (!lock && lock.error().code() != StatusCode::kNotFound) {
    const bool held = lock.error().code() == StatusCode::kDeadlineExceeded;
    return {"their leases", Verdict::kMissing,
            lock.error().message() + (held ? "; a server of an older version uses a folder alone" : "")};
  }
  files = Count(directory + "/states");
  std::string text = fmt::format("{}, {} being written", Counted(files.num_states, "state"), files.num_begun);
  if (files.num_abandoned > 0)
    text += fmt::format(", {} left by dead servers, which the next one removes", files.num_abandoned);
  if (files.num_foreign == 0) return {"their leases", Verdict::kOk, text};
  return {"their leases", Verdict::kNote,
          fmt::format("{}; {}", text,
                      Counted(files.num_foreign, "file in states/ holds no state and stays",
                              "files in states/ hold no state and stay"))};
}

Finding Room(const std::string& directory, const Files& files, int64_t max_bytes) {
  struct statvfs space = {};
  if (::statvfs(directory.c_str(), &space) != 0) return {"their room", Verdict::kNote, Reason("statvfs")};
  const auto free = static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize);
  const int64_t to_come = std::max<int64_t>(0, max_bytes - files.num_bytes);
  std::string text = fmt::format(
      "{} of the {} that all may have, {} free", ReadableBytes(static_cast<double>(files.num_bytes)),
      ReadableBytes(static_cast<double>(max_bytes)), ReadableBytes(static_cast<double>(free)));
  if (free < to_come) {
    return {"their room", Verdict::kNote,
            text + ": the storage is full before --prefix-cache-disk-mib is, and then nothing more is kept"};
  }
  if (space.f_files > 0 && space.f_favail < 64)
    return {"their room", Verdict::kNote,
            fmt::format("{}; room for {}", text, Counted(space.f_favail, "more file"))};
  return {"their room", Verdict::kOk, text};
}

}  // namespace

std::vector<Finding> CheckSharedStates(const std::string& directory, int64_t max_bytes) {
  constexpr std::string_view kSubject = "shared states";
  std::error_code error;
  struct stat status = {};
  if (::stat(directory.c_str(), &status) != 0) {
    if (errno != ENOENT)
      return {
          {std::string(kSubject), Verdict::kMissing, fmt::format("{}: {}", directory, Reason("not there"))}};
    fs::path above = fs::absolute(directory, error);
    while (!fs::exists(above, error) && above != above.parent_path()) above = above.parent_path();
    const bool writable = ::access(above.c_str(), W_OK | X_OK) == 0;
    std::vector<Finding> findings = {
        {std::string(kSubject), writable ? Verdict::kNote : Verdict::kMissing,
         writable ? fmt::format("{}: not there; a server's start makes it in {}", directory, above.string())
                  : fmt::format("{}: not there, and {} is not writable", directory, above.string())}};
    findings.push_back(Storage(fs::canonical(above, error).string()));
    return findings;
  }
  if (!S_ISDIR(status.st_mode))
    return {{std::string(kSubject), Verdict::kMissing, directory + ": not a folder"}};
  std::vector<Finding> findings;
  // A start sets the folder's mode, which only its owner may.
  if (::geteuid() != 0 && status.st_uid != ::geteuid()) {
    findings.push_back({std::string(kSubject), Verdict::kMissing,
                        fmt::format("{}: belongs to user {}, this is {}; servers that share it have one user",
                                    directory, status.st_uid, ::geteuid())});
  } else if ((status.st_mode & 0077) != 0) {
    findings.push_back(
        {std::string(kSubject), Verdict::kNote,
         directory + ": open to other users until a server's start makes it its owner's alone"});
  } else {
    findings.push_back({std::string(kSubject), Verdict::kOk, directory});
  }
  findings.push_back(Storage(fs::canonical(directory, error).string()));
  findings.push_back(Rules(directory));
  Files files;
  findings.push_back(Leases(directory, files));
  findings.push_back(Room(directory, files, max_bytes));
  return findings;
}

}  // namespace dsv4::apps
