// Reader of NUMA nodes from sysfs, and system calls that interleave pages and keep threads on nodes.
#include "base/numa.h"

#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/read_file.h"
#include "base/text.h"

namespace dsv4 {
namespace {

constexpr int kMaxIds = 8192;  // CPUs and nodes; Linux is built for at most this many CPUs.
constexpr int kBitsPerWord = 8 * sizeof(unsigned long);
using NodeMask = std::array<unsigned long, kMaxIds / kBitsPerWord>;

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  return text;
}

bool ParseId(std::string_view text, int& id) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  return error == std::errc() && end == text.data() + text.size() && id >= 0 && id < kMaxIds;
}

Result<std::vector<int>> ReadIdList(const std::string& path) {
  DSV4_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  Result<std::vector<int>> ids = ParseIdList(Trimmed(text));
  if (!ids) return Error(ids.error().WithContext(path));
  return ids;
}

// The bytes of a line "Node 0 MemTotal:       24209624 kB".
Result<int64_t> MeminfoBytes(const std::string& path, std::string_view text, std::string_view key) {
  const std::string wanted = fmt::format(" {}:", key);
  if (size_t at = text.find(wanted); at != std::string_view::npos) {
    at = text.find_first_not_of(' ', at + wanted.size());
    const std::string_view line =
        at == std::string_view::npos ? "" : text.substr(at, text.find('\n', at) - at);
    int64_t kilobytes = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), kilobytes);
    const bool in_kb = std::string_view(end, static_cast<size_t>(line.data() + line.size() - end)) == " kB";
    if (error == std::errc() && in_kb && kilobytes >= 0 && kilobytes <= INT64_MAX / 1024)
      return kilobytes * 1024;
  }
  return Error(DataLoss(fmt::format("{}: no line \"{}: N kB\"", path, key)));
}

Result<NumaNode> ReadNode(const std::string& directory, int id) {
  NumaNode node;
  node.id = id;
  DSV4_ASSIGN_OR_RETURN(node.cpus, ReadIdList(directory + "/cpulist"));
  const std::string meminfo = directory + "/meminfo";
  DSV4_ASSIGN_OR_RETURN(const std::string text, ReadFile(meminfo));
  DSV4_ASSIGN_OR_RETURN(node.memory_bytes, MeminfoBytes(meminfo, text, "MemTotal"));
  DSV4_ASSIGN_OR_RETURN(node.free_bytes, MeminfoBytes(meminfo, text, "MemFree"));
  return node;
}

bool Allows(std::span<const int> allowed, int id) {
  return allowed.empty() || std::find(allowed.begin(), allowed.end(), id) != allowed.end();
}

}  // namespace

Result<std::vector<int>> ParseIdList(std::string_view text) {
  std::vector<int> ids;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t comma = rest.find(',');
    const std::string_view range = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
    const size_t dash = range.find('-');
    int first = 0;
    int last = 0;
    bool good = ParseId(range.substr(0, dash), first);
    good = good && ParseId(dash == std::string_view::npos ? range : range.substr(dash + 1), last);
    good = good && first <= last && (ids.empty() || first > ids.back());
    good = good && (comma == std::string_view::npos || !rest.empty());
    if (!good) return Error(InvalidArgument(fmt::format("\"{}\": wanted a list such as 0-3,8", text)));
    for (int id = first; id <= last; ++id) ids.push_back(id);
  }
  return ids;
}

Result<std::vector<NumaNode>> ReadNumaNodes(const std::string& sysfs_root) {
  const std::string directory = sysfs_root + "/devices/system/node";
  const Result<std::vector<int>> online = ReadIdList(directory + "/online");
  if (!online) {
    if (online.error().code() == StatusCode::kNotFound) return std::vector<NumaNode>();
    return Error(online.error());
  }
  std::vector<NumaNode> nodes;
  for (const int id : *online) {
    DSV4_ASSIGN_OR_RETURN(nodes.emplace_back(), ReadNode(fmt::format("{}/node{}", directory, id), id));
  }
  return nodes;
}

NumaLimits ProcessNumaLimits() {
  NumaLimits limits;
  cpu_set_t* set = CPU_ALLOC(kMaxIds);
  const size_t set_bytes = CPU_ALLOC_SIZE(kMaxIds);
  if (set != nullptr && ::sched_getaffinity(0, set_bytes, set) == 0) {
    for (int cpu = 0; cpu < kMaxIds; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), set_bytes, set)) limits.cpus.push_back(cpu);
    }
  }
  if (set != nullptr) CPU_FREE(set);
  NodeMask mask = {};
  if (::syscall(SYS_get_mempolicy, nullptr, mask.data(), kMaxIds, nullptr, MPOL_F_MEMS_ALLOWED) == 0) {
    for (int node = 0; node < kMaxIds; ++node) {
      if (((mask[static_cast<size_t>(node / kBitsPerWord)] >> (node % kBitsPerWord)) & 1) != 0) {
        limits.nodes.push_back(node);
      }
    }
  }
  return limits;
}

NumaPlan PlanNuma(std::span<const NumaNode> nodes, const NumaLimits& limits) {
  NumaPlan plan;
  for (NumaNode node : nodes) {
    std::erase_if(node.cpus, [&](int cpu) { return !Allows(limits.cpus, cpu); });
    // Memory without CPUs is slower kinds, which would hold all threads up.
    if (node.cpus.empty() || node.memory_bytes == 0 || !Allows(limits.nodes, node.id)) continue;
    plan.nodes.push_back(std::move(node));
  }
  plan.interleave = plan.nodes.size() > 1;
  if (plan.interleave) {
    plan.reason = fmt::format("{} with CPUs and memory: one alone would serve the threads of all",
                              Counted(plan.nodes.size(), "node"));
  } else if (nodes.size() > 1) {
    plan.reason = "this process may use the CPUs and memory of one node only";
  } else {
    plan.reason = "one node";
  }
  return plan;
}

Status InterleaveNewPages(std::span<const int> nodes) {
  NodeMask mask = {};
  for (const int node : nodes) {
    if (node < 0 || node >= kMaxIds) return InvalidArgument(fmt::format("NUMA node {}", node));
    mask[static_cast<size_t>(node / kBitsPerWord)] |= 1UL << (node % kBitsPerWord);
  }
  if (::syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, mask.data(), kMaxIds) != 0) {
    return FailedPrecondition(
        fmt::format("the kernel refuses to interleave memory over NUMA nodes: {}", std::strerror(errno)));
  }
  return {};
}

Status KeepThreadOn(std::span<const int> cpus) {
  cpu_set_t* set = CPU_ALLOC(kMaxIds);
  if (set == nullptr) return ResourceExhausted("no memory for a set of CPUs");
  const size_t set_bytes = CPU_ALLOC_SIZE(kMaxIds);
  CPU_ZERO_S(set_bytes, set);
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), set_bytes, set);
  const int rc = ::sched_setaffinity(0, set_bytes, set);
  const int error = errno;
  CPU_FREE(set);
  if (rc == 0) return {};
  return FailedPrecondition(
      fmt::format("the kernel refuses to keep a thread on {} CPUs: {}", cpus.size(), std::strerror(error)));
}

std::map<int, int64_t> SamplePageNodes(std::span<const std::byte> bytes, int64_t max_samples) {
  const auto page_bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(bytes.data()) + page_bytes - 1) / page_bytes * page_bytes;
  const auto end = reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size();
  std::map<int, int64_t> counts;
  if (begin + page_bytes > end || max_samples <= 0) return counts;
  const auto num_pages = static_cast<int64_t>((end - begin) / page_bytes);
  const int64_t num_samples = std::min(num_pages, max_samples);
  std::vector<void*> pages;
  for (int64_t i = 0; i < num_samples; ++i) {
    auto* page =
        reinterpret_cast<std::byte*>(begin) + static_cast<size_t>(num_pages * i / num_samples) * page_bytes;
    unsigned char in_memory = 0;
    if (::mincore(page, page_bytes, &in_memory) != 0 || (in_memory & 1) == 0) continue;
    // The kernel speaks only of pages that this process has mapped.
    static_cast<void>(*static_cast<const volatile std::byte*>(page));
    pages.push_back(page);
  }
  std::vector<int> where(pages.size(), -1);
  if (::syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, where.data(), 0) != 0) return counts;
  for (const int node : where) {
    if (node >= 0) ++counts[node];
  }
  return counts;
}

}  // namespace dsv4
