#include "comm/machine.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/read_file.h"
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

Result<int> CountRanksHere(Communicator& group) {
  const MachineId mine = ThisMachine();
  std::vector<MachineId> all(static_cast<size_t>(group.size()));
  const std::vector<int64_t> sizes(all.size(), sizeof(MachineId));
  DSV4_TRY(
      group.AllGather(std::as_bytes(std::span(&mine, 1)), 1, sizes, std::as_writable_bytes(std::span(all))));
  return static_cast<int>(std::ranges::count(all, mine));
}

}  // namespace dsv4::comm
