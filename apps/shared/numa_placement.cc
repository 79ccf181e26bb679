// --numa: interleaved pages and threads dealt out over nodes, with warnings.
#include "apps/shared/numa_placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/log.h"
#include "base/numa.h"
#include "io/mapped_file.h"

namespace dsv4::apps {
namespace {

Result<NumaPlan> Plan(const ModelFlags& flags) {
  if (flags.numa == "off") return NumaPlan();
  DSV4_ASSIGN_OR_RETURN(const std::vector<NumaNode> nodes, ReadNumaNodes());
  return PlanNuma(nodes, ProcessNumaLimits());
}

}  // namespace

Result<std::vector<std::vector<int>>> PlaceOnNodes(const ModelFlags& flags) {
  DSV4_ASSIGN_OR_RETURN(const NumaPlan plan, Plan(flags));
  std::vector<std::vector<int>> cpus_of_nodes;
  if (!plan.interleave) return cpus_of_nodes;
  std::vector<int> ids;
  for (const NumaNode& node : plan.nodes) {
    ids.push_back(node.id);
    cpus_of_nodes.push_back(node.cpus);
  }
  if (const Status status = InterleaveNewPages(ids); !status.ok()) {
    if (flags.numa == "interleave") return Error(status.WithContext("--numa interleave"));
    LogWarning(fmt::format("--numa auto: {}; memory is placed as the system does", status.message()));
  } else {
    LogInfo(fmt::format("memory is interleaved: {}", plan.reason));
  }
  return cpus_of_nodes;
}

Status CheckPlacement(const ModelFlags& flags, const io::Checkpoint& checkpoint) {
  constexpr int64_t kSamplesPerFile = 1024;
  DSV4_ASSIGN_OR_RETURN_STATUS(const NumaPlan plan, Plan(flags));
  if (!plan.interleave) return {};
  std::map<int, int64_t> counts;
  int64_t total = 0;
  for (const auto& file : checkpoint.files()) {
    for (const auto& [node, count] : SamplePageNodes(file.bytes(), kSamplesPerFile)) {
      counts[node] += count;
      total += count;
    }
  }
  if (total == 0) return {};
  const auto most = std::max_element(counts.begin(), counts.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  const double share = static_cast<double>(most->second) / static_cast<double>(total);
  const std::string line = fmt::format("{:.0f} % of the weights' pages in memory are on node {} of {}",
                                       100 * share, most->first, plan.nodes.size());
  if (share * static_cast<double>(plan.nodes.size()) > 1.5) {
    LogWarning(line +
               ", where an earlier process read them; they are spread once the system's file cache has let "
               "them go (as root: echo 1 > /proc/sys/vm/drop_caches)");
  } else {
    LogInfo(line);
  }
  return {};
}

}  // namespace dsv4::apps
