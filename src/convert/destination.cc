// Output directory of a conversion: DST.partial, reserved space, copied files, index, and the final rename.
#include "convert/destination.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <span>
#include <utility>

#include "base/json.h"
#include "io/output_file.h"

namespace dsv4::convert {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kJournal = "dsv4-convert.journal";
constexpr std::string_view kIndex = "model.safetensors.index.json";

Status FileError(const std::string& path, std::string_view doing, const std::string& why) {
  return ResourceExhausted(fmt::format("{}: cannot {}: {}", path, doing, why));
}

// Without trailing slashes.
std::string Trimmed(const std::string& directory) { return fs::path(directory + "/").parent_path().string(); }

// A file or directory has reached the disk when this returns.
Status SyncPath(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return FileError(path, "open", std::strerror(errno));
  const bool synced = ::fsync(descriptor) == 0;
  const int error = errno;
  ::close(descriptor);
  return synced ? Status() : FileError(path, "write", std::strerror(error));
}

int64_t AllocatedBytes(const std::string& directory) {
  int64_t bytes = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory, error)) {
    struct stat status = {};
    if (::lstat(entry.path().c_str(), &status) == 0 && S_ISREG(status.st_mode))
      bytes += static_cast<int64_t>(status.st_blocks) * 512;
  }
  return bytes;
}

// Written by us, or meaningless beside other weights.
bool IsReplaced(const fs::path& path) {
  const std::string name = path.filename().string();
  static const std::set<std::string> names = {"config.json", "hf_quant_config.json", std::string(kJournal)};
  return names.contains(name) || name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
}

Status CopyOtherFiles(const fs::path& from, const fs::path& to) {
  std::error_code error;
  auto entries = fs::recursive_directory_iterator(from, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    const fs::path& path = entries->path();
    if (path.filename().string().starts_with('.')) {
      if (entries->is_directory(error)) entries.disable_recursion_pending();
      continue;
    }
    // A link to a regular file counts as one: caches of model hubs are made of them.
    if (!entries->is_regular_file(error) || IsReplaced(path)) continue;
    const fs::path target = to / path.lexically_relative(from);
    fs::create_directories(target.parent_path(), error);
    if (!error) fs::copy_file(path, target, fs::copy_options::overwrite_existing, error);
    if (error) return FileError(target.string(), fmt::format("copy {}", path.string()), error.message());
    DSV4_RETURN_IF_ERROR(SyncPath(target.string()));
  }
  return error ? FileError(from.string(), "list", error.message()) : Status();
}

std::string IndexJson(const Plan& plan) {
  int64_t total = 0;
  std::string weight_map;
  for (const OutputTensor& output : plan.outputs) {
    total += output.entry.num_bytes;
    weight_map += fmt::format("{}\n    {}: \"{}\"", weight_map.empty() ? "" : ",",
                              Json(output.entry.name).dump(), plan.shards[output.shard].file_name);
  }
  return fmt::format("{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{{}\n  }}\n}}\n", total,
                     weight_map);
}

}  // namespace

Result<Destination> Destination::Prepare(const std::string& source, const std::string& directory) {
  Destination destination;
  destination.source_ = source;
  destination.directory_ = Trimmed(directory);
  destination.partial_ = destination.directory_ + ".partial";
  std::error_code error;
  const bool exists = fs::symlink_status(destination.directory_, error).type() != fs::file_type::not_found;
  if (exists &&
      !(fs::is_directory(destination.directory_, error) && fs::is_empty(destination.directory_, error))) {
    return Error(
        FailedPrecondition(fmt::format("{}: exists and is not an empty directory", destination.directory_)));
  }
  const fs::path inside = fs::weakly_canonical(destination.directory_, error)
                              .lexically_relative(fs::weakly_canonical(source, error));
  if (!inside.empty() && *inside.begin() != "..")
    return Error(
        FailedPrecondition(fmt::format("{}: lies inside the source {}", destination.directory_, source)));
  if (fs::symlink_status(destination.partial_, error).type() != fs::file_type::not_found) {
    destination.is_resumed_ = fs::is_regular_file(destination.journal_path(), error);
    const bool empty =
        fs::is_directory(destination.partial_, error) && fs::is_empty(destination.partial_, error);
    if (!destination.is_resumed_ && !empty)
      return Error(FailedPrecondition(fmt::format(
          "{}: exists and is no interrupted conversion of ours; remove it first", destination.partial_)));
  }
  return destination;
}

std::string Destination::journal_path() const { return fmt::format("{}/{}", partial_, kJournal); }

Status Destination::Create(int64_t num_bytes) const {
  std::error_code error;
  fs::path existing = fs::absolute(partial_, error);
  while (!fs::exists(existing, error) && existing != existing.parent_path())
    existing = existing.parent_path();
  struct statvfs space = {};
  if (::statvfs(existing.c_str(), &space) == 0) {
    const int64_t free_bytes = static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize);
    const int64_t needed = num_bytes - AllocatedBytes(partial_);
    if (needed > free_bytes) {
      return ResourceExhausted(fmt::format("{}: needs {:.3f} GB more, the disk has {:.3f} GB left", partial_,
                                           static_cast<double>(needed) / 1e9,
                                           static_cast<double>(free_bytes) / 1e9));
    }
  }
  fs::create_directories(partial_, error);
  return error ? FileError(partial_, "create", error.message()) : Status();
}

Result<std::vector<io::RandomAccessFile>> Destination::OpenShards(const Plan& plan) const {
  std::vector<io::RandomAccessFile> files;
  for (const Shard& shard : plan.shards) {
    DSV4_ASSIGN_OR_RETURN(
        io::RandomAccessFile file,
        io::RandomAccessFile::Open(fmt::format("{}/{}", partial_, shard.file_name), shard.file_bytes));
    DSV4_TRY(file.WriteAt(0, std::as_bytes(std::span(shard.header))));
    files.push_back(std::move(file));
  }
  return files;
}

Status Destination::WriteOtherFiles(const Plan& plan, const std::string& config_json,
                                    const std::string& hf_quant_config) const {
  std::vector<std::pair<std::string, std::string>> files = {{"config.json", config_json}};
  if (!hf_quant_config.empty()) files.emplace_back("hf_quant_config.json", hf_quant_config);
  if (plan.shards.size() > 1) files.emplace_back(kIndex, IndexJson(plan));
  for (const auto& [name, text] : files) {
    const std::string path = fmt::format("{}/{}", partial_, name);
    DSV4_RETURN_IF_ERROR(io::WriteTextFile(path, text));
    DSV4_RETURN_IF_ERROR(SyncPath(path));
  }
  return CopyOtherFiles(source_, partial_);
}

Status Destination::Publish(const std::vector<io::RandomAccessFile>& shards) const {
  for (const io::RandomAccessFile& shard : shards) DSV4_RETURN_IF_ERROR(shard.Sync());
  DSV4_RETURN_IF_ERROR(SyncPath(partial_));
  std::error_code error;
  fs::rename(partial_, directory_, error);  // Replaces an empty directory.
  if (error)
    return ResourceExhausted(
        fmt::format("{}: cannot rename from {}: {}", directory_, partial_, error.message()));
  // After the rename: a crash between the two must not turn a finished conversion into one without a journal.
  fs::remove(fmt::format("{}/{}", directory_, kJournal), error);
  return SyncPath(fs::absolute(directory_, error).parent_path().string());
}

void Destination::Discard() const {
  std::error_code error;
  fs::remove_all(partial_, error);
}

}  // namespace dsv4::convert
