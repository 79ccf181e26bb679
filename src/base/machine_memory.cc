// Reader of /proc/meminfo and of control-group limits of both versions.
#include "base/machine_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <functional>
#include <optional>
#include <string_view>

namespace dsv4 {
namespace {

// The number that a file of a control group holds; nullopt for "max", and where there is no such file.
std::optional<int64_t> ReadLimit(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (!(file >> value) || value <= 0) return std::nullopt;
  return value;
}

// The number behind `name` at the start of a line.
std::optional<int64_t> NumberOf(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    const size_t digits = line.find_first_not_of(": \t", name.size());
    int64_t value = 0;
    if (digits == std::string::npos) return std::nullopt;
    const auto read = std::from_chars(line.data() + digits, line.data() + line.size(), value);
    return read.ec == std::errc() ? std::optional(value) : std::nullopt;
  }
  return std::nullopt;
}

// Memory that one control group leaves: its limit, and use beyond copies of files.
void Limit(MachineMemory& memory, const std::string& limit_file, const std::string& usage_file,
           const std::string& statistics, std::string_view cached) {
  const std::optional<int64_t> limit = ReadLimit(limit_file);
  if (!limit || *limit >= memory.total) return;
  const int64_t used = ReadLimit(usage_file).value_or(0) - NumberOf(statistics, cached).value_or(0);
  memory.total = *limit;
  memory.available = std::min(memory.available, std::max<int64_t>(0, *limit - std::max<int64_t>(0, used)));
}

void LimitOfFirstVersion(MachineMemory& memory, const std::string& group) {
  const std::string here = group + "/memory.";
  Limit(memory, here + "limit_in_bytes", here + "usage_in_bytes", here + "stat", "total_cache ");
}

// "/a/b", "/a" and "" of "/a/b".
void ForEachGroup(std::string group, const std::function<void(const std::string&)>& visit) {
  for (;; group.erase(group.find_last_of('/'))) {
    if (group == "/") group.clear();
    visit(group);
    if (group.empty()) return;
  }
}

}  // namespace

Result<MachineMemory> ReadMachineMemory(const std::string& root) {
  const std::string path = root + "/proc/meminfo";
  const std::optional<int64_t> total = NumberOf(path, "MemTotal:");
  const std::optional<int64_t> available = NumberOf(path, "MemAvailable:");
  if (!total || !available) {
    return Error(NotFound(fmt::format("{}: no MemTotal and MemAvailable", path)));
  }
  MachineMemory memory{.total = *total * 1024, .available = *available * 1024};
  const std::string groups = root + "/sys/fs/cgroup";
  // The group of this process, as its namespace shows it, and those around it. In a container it may stand at
  // the top, whatever it is called.
  std::ifstream own(root + "/proc/self/cgroup");
  bool first_version = false;
  for (std::string line; std::getline(own, line);) {
    if (line.starts_with("0::")) {
      ForEachGroup(line.substr(3), [&](const std::string& group) {
        const std::string here = groups + group + "/memory.";
        Limit(memory, here + "max", here + "current", here + "stat", "file ");
      });
    } else if (const size_t at = line.find(":memory:"); at != std::string::npos) {
      first_version = true;
      ForEachGroup(line.substr(at + std::string_view(":memory:").size()), [&](const std::string& group) {
        LimitOfFirstVersion(memory, groups + "/memory" + group);
      });
    }
  }
  if (!first_version) LimitOfFirstVersion(memory, groups + "/memory");
  return memory;
}

}  // namespace dsv4
