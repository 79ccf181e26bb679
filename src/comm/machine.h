// Which ranks are on one machine: those that can share memory and map each other's.
#pragma once

#include <array>
#include <string>

#include "comm/communicator.h"

namespace dsv4::comm {

// The same for processes of one boot of one machine and of one process namespace, so two containers count as two machines.
using MachineId = std::array<char, 64>;
MachineId ThisMachine();

// The name by which people know it.
std::string HostName();

// How many ranks of the group run on this rank's machine, itself included. All ranks call it.
Result<int> CountRanksHere(Communicator& group);

}  // namespace dsv4::comm
