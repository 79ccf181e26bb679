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

// Names of this machine's devices for RDMA, in order; none on most.
std::vector<std::string> RdmaDevices(const std::string& folder = "/sys/class/infiniband");

// How this machine's ranks reach those of others, said where it costs speed; empty where NCCL finds what it
// wants. `by_nccl`: large data goes between GPUs. `nccl_without_rdma`: NCCL_IB_DISABLE forbids it.
std::string SlowNetwork(bool by_nccl, bool nccl_without_rdma, const std::vector<std::string>& rdma_devices);

}  // namespace dsv4::comm
