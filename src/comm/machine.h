// Which ranks are on one machine: those that can share memory and map each other's.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace dsv4::comm {

// The same for processes of one boot of one machine and of one process namespace, so two containers count as
// two machines.
using MachineId = std::array<char, 64>;
MachineId ThisMachine();

// The name by which people know it.
std::string HostName();

// Which ranks of the group run on this rank's machine, itself included, in ascending order. All ranks call
// it.
Result<std::vector<int>> RanksHere(Communicator& group);

}  // namespace dsv4::comm
