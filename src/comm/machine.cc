// Identity of this machine from boot id and process namespace, and the ranks that share it.
#include "comm/machine.h"

#include <unistd.h>

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

}  // namespace dsv4::comm
