// NUMA: which CPUs and which memory of the machine belong together, and where new pages go.
//
// Every thread reads every weight. The weights of a machine with several nodes are therefore interleaved over
// all of them. Each node's memory then serves its share, whichever thread asks. docs/cpu-backend.md has the
// reasons.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv4 {

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;     // All of the node's that are online, ascending.
  int64_t memory_bytes = 0;  // 0: a node of CPUs only.
  int64_t free_bytes = 0;
};

// The ids of a kernel list such as "0-3,8" ("" is no id), ascending. InvalidArgument for anything else; ids
// are below 8192.
Result<std::vector<int>> ParseIdList(std::string_view text);

// The nodes that are online, by id. None when the kernel knows no nodes. InvalidArgument or DataLoss names
// the file under `sysfs_root` that does not read as the kernel writes it.
Result<std::vector<NumaNode>> ReadNumaNodes(const std::string& sysfs_root = "/sys");

// CPUs and nodes that the system lets this process use (taskset, cpusets). Empty lists: the system does not
// say, which means all.
struct NumaLimits {
  std::vector<int> cpus;
  std::vector<int> nodes;  // With memory.
};
NumaLimits ProcessNumaLimits();

// Nodes for threads and pages of this process.
struct NumaPlan {
  std::vector<NumaNode> nodes;  // With memory and CPUs that this process may use; `cpus` are only those.
  bool interleave = false;      // There is more than one.
  std::string reason;           // In a few words, for people.
};
NumaPlan PlanNuma(std::span<const NumaNode> nodes, const NumaLimits& limits);

// From now on the pages that the calling thread, and threads it starts later, touch first are taken from
// `nodes` in turn. That holds for private memory and for pages of files which are not in memory yet; pages
// that are stay where they are. FailedPrecondition when the kernel refuses (containers may forbid it).
Status InterleaveNewPages(std::span<const int> nodes);

// Keeps the calling thread on `cpus`. FailedPrecondition when the kernel refuses.
Status KeepThreadOn(std::span<const int> cpus);

// Counts at most `max_samples` evenly spaced pages of `bytes` that are in memory now by node; reads a byte of
// each. Empty when the kernel does not tell.
std::map<int, int64_t> SamplePageNodes(std::span<const std::byte> bytes, int64_t max_samples);

}  // namespace dsv4
