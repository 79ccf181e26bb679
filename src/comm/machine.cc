// Identity of this machine from boot id and process namespace, and the ranks that share it.
#include "comm/machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/read_file.h"
#include "comm/collectives.h"
#include "comm/socket.h"

namespace dsv4::comm {

std::string HostName() {
  std::array<char, 64> name = {};
  (void)::gethostname(name.data(), name.size() - 1);
  return name.data();
}

MachineId ThisMachine() {
  const Result<std::string> boot = ReadFile("/proc/sys/kernel/random/boot_id", FileKind::kAny);
  std::string name = boot ? boot->substr(0, 36) : HostName().substr(0, 36);
  std::array<char, 27> processes = {};
  if (::readlink("/proc/self/ns/pid", processes.data(), processes.size() - 1) > 0) name += processes.data();
  MachineId id;
  Put(id, name);
  return id;
}

Result<std::vector<int>> RanksHere(Communicator& group) {
  const MachineId mine = ThisMachine();
  DSV4_ASSIGN_OR_RETURN(const std::vector<MachineId> all, GatherValues(group, mine));
  std::vector<int> here;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == mine) here.push_back(static_cast<int>(rank));
  }
  return here;
}

std::vector<std::string> RdmaDevices(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::string SlowNetwork(bool by_nccl, bool nccl_without_rdma, const std::vector<std::string>& rdma_devices) {
  const std::string devices = rdma_devices.empty()
                                  ? "this machine has no RDMA device"
                                  : fmt::format("RDMA devices here: {}", fmt::join(rdma_devices, ", "));
  if (!by_nccl) {
    return fmt::format("ranks of other machines are reached over TCP, not by RDMA ({}{})", devices,
                       rdma_devices.empty() ? "" : ", not used");
  }
  if (nccl_without_rdma)
    return fmt::format("GPUs of other machines are reached over TCP: NCCL_IB_DISABLE forbids RDMA ({})",
                       devices);
  if (!rdma_devices.empty()) return {};
  return fmt::format(
      "GPUs of other machines are reached over TCP, unless NCCL has a plugin for this network: {}", devices);
}

}  // namespace dsv4::comm
