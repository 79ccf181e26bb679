// Repositories that lie in the cache of this machine: which there are, and how one is removed.
#include "hub/cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <system_error>

#include "base/read_file.h"

namespace dsv4::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "models--";
constexpr std::string_view kUnfinished = ".incomplete";

// The names below refs/, with the commits that they mean.
std::vector<std::pair<std::string, std::string>> ReadRefs(const fs::path& folder) {
  std::vector<std::pair<std::string, std::string>> refs;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder / "refs", error), end; !error && at != end;
       at.increment(error)) {
    if (!at->is_regular_file(error)) continue;
    Result<std::string> commit = ReadFile(at->path().string(), FileKind::kRegular, 1024);
    if (!commit) continue;
    while (!commit->empty() && static_cast<unsigned char>(commit->back()) <= ' ') commit->pop_back();
    refs.emplace_back(at->path().lexically_relative(folder / "refs").string(), std::move(*commit));
  }
  std::ranges::sort(refs);
  return refs;
}

// The file that a name in a snapshot stands for, and its size.
struct Blob {
  fs::path path;
  int64_t num_bytes = 0;
};
std::vector<Blob> BlobsOf(const fs::path& snapshot) {
  std::vector<Blob> blobs;
  std::error_code error;
  for (fs::recursive_directory_iterator at(snapshot, error), end; !error && at != end; at.increment(error)) {
    std::error_code missing;
    if (fs::is_directory(at->path(), missing)) continue;
    const fs::path blob = fs::weakly_canonical(at->path(), missing);
    const auto size = fs::file_size(at->path(), missing);
    blobs.push_back({blob, missing ? 0 : static_cast<int64_t>(size)});
  }
  return blobs;
}

int64_t DiskBytes(const fs::path& folder, bool unfinished) {
  int64_t sum = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    std::error_code missing;
    if (entry.is_symlink(missing) || !entry.is_regular_file(missing)) continue;
    const auto size = static_cast<int64_t>(entry.file_size(missing));
    if (!missing && (!unfinished || entry.path().string().ends_with(kUnfinished))) sum += size;
  }
  return sum;
}

CachedRepository ReadRepository(const fs::path& folder, std::string owner, std::string name) {
  CachedRepository repository = {.owner = std::move(owner), .name = std::move(name), .folder = folder};
  const auto refs = ReadRefs(folder);
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder / "snapshots", error)) {
    CachedSnapshot snapshot = {.commit = entry.path().filename().string(), .path = entry.path()};
    for (const Blob& blob : BlobsOf(entry.path())) {
      ++snapshot.num_files;
      snapshot.num_bytes += blob.num_bytes;
    }
    for (const auto& [revision, commit] : refs) {
      if (commit == snapshot.commit) snapshot.revisions.push_back(revision);
    }
    repository.snapshots.push_back(std::move(snapshot));
  }
  std::ranges::sort(repository.snapshots, {}, &CachedSnapshot::commit);
  repository.num_bytes = DiskBytes(folder / "blobs", false);
  repository.unfinished_bytes = DiskBytes(folder / "blobs", true);
  return repository;
}

// Whether another process holds the lock of a file that it fetches.
bool IsBeingFetched(const CachedRepository& repository) {
  std::error_code error;
  const fs::path locks = repository.folder.parent_path() / ".locks" / repository.folder.filename();
  for (const fs::directory_entry& entry : fs::directory_iterator(locks, error)) {
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    const bool held = ::flock(file, LOCK_EX | LOCK_NB) != 0;
    ::close(file);
    if (held) return true;
  }
  return false;
}

}  // namespace

Result<std::vector<CachedRepository>> ListCache(const fs::path& cache) {
  std::vector<CachedRepository> found;
  std::error_code error;
  if (!fs::exists(cache, error)) return found;
  fs::directory_iterator folders(cache, error);
  if (error) return Error(FailedPrecondition(fmt::format("{}: {}", cache.string(), error.message())));
  for (const fs::directory_entry& entry : folders) {
    const std::string folder = entry.path().filename().string();
    const size_t middle = folder.find("--", kPrefix.size());
    if (!folder.starts_with(kPrefix) || middle == std::string::npos) continue;
    found.push_back(ReadRepository(entry.path(), folder.substr(kPrefix.size(), middle - kPrefix.size()),
                                   folder.substr(middle + 2)));
  }
  std::ranges::sort(found, {}, &CachedRepository::repository);
  return found;
}

Result<Reference> FindInCache(const std::vector<CachedRepository>& repositories, const std::string& text) {
  const auto has = [&](const Reference& reference) {
    return std::ranges::any_of(repositories, [&](const CachedRepository& each) {
      return each.repository() == reference.repository();
    });
  };
  std::error_code ignored;
  const std::string unknown =
      fs::is_directory(text, ignored)
          ? fmt::format("{0}: a folder, not a pulled model; `dsv4 inspect -m {0}` says what it is", text)
          : fmt::format("{}: not pulled; `dsv4 list` shows what is", text);
  if (const Result<Reference> reference = ParseReference(text)) {
    if (has(*reference)) return reference;
    return Error(NotFound(unknown));
  }
  std::vector<std::string> named;
  for (const CachedRepository& each : repositories) {
    if (each.name == text.substr(0, text.find('@'))) named.push_back(each.repository());
  }
  if (named.empty()) return Error(NotFound(unknown));
  if (named.size() > 1)
    return Error(InvalidArgument(fmt::format("{}: which of {}?", text, fmt::join(named, ", "))));
  const size_t at = text.find('@');
  return ParseReference(named.front() + (at == std::string::npos ? std::string() : text.substr(at)));
}

Result<Removal> PlanRemoval(const CachedRepository& repository, const Reference& reference, bool all) {
  if (IsBeingFetched(repository))
    return Error(
        FailedPrecondition(fmt::format("{}: a file of it is being fetched", repository.repository())));
  Removal removal;
  const auto is_meant = [&](const CachedSnapshot& snapshot) {
    return snapshot.commit == reference.revision ||
           std::ranges::find(snapshot.revisions, reference.revision) != snapshot.revisions.end();
  };
  const auto meant = std::ranges::find_if(repository.snapshots, is_meant);
  const bool only = repository.snapshots.size() <= 1 && reference.revision == "main";
  if (all || only || (meant != repository.snapshots.end() && repository.snapshots.size() == 1)) {
    removal.paths = {repository.folder,
                     repository.folder.parent_path() / ".locks" / repository.folder.filename()};
    removal.num_bytes = repository.num_bytes;
    return removal;
  }
  if (meant == repository.snapshots.end()) {
    return Error(NotFound(
        fmt::format("{}: no revision {} of it was pulled", repository.repository(), reference.revision)));
  }
  std::set<fs::path> others;
  for (const CachedSnapshot& snapshot : repository.snapshots) {
    if (&snapshot == &*meant) continue;
    for (const Blob& blob : BlobsOf(snapshot.path)) others.insert(blob.path);
  }
  removal.paths.push_back(meant->path);
  for (const std::string& revision : meant->revisions)
    removal.paths.push_back(repository.folder / "refs" / revision);
  std::error_code error;
  const fs::path blobs = fs::weakly_canonical(repository.folder / "blobs", error);
  std::map<fs::path, int64_t> own;
  for (const Blob& blob : BlobsOf(meant->path)) {
    // A link may lead anywhere; what lies elsewhere is not this cache's.
    if (!others.contains(blob.path) && blob.path.parent_path() == blobs)
      own.emplace(blob.path, blob.num_bytes);
  }
  for (const auto& [path, bytes] : own) {
    removal.paths.push_back(path);
    removal.num_bytes += bytes;
  }
  return removal;
}

Status Remove(const Removal& removal) {
  for (const fs::path& path : removal.paths) {
    std::error_code error;
    fs::remove_all(path, error);
    if (error)
      return FailedPrecondition(fmt::format("{}: cannot be removed: {}", path.string(), error.message()));
  }
  return {};
}

}  // namespace dsv4::hub
