// A group whose data lies in the memory of CUDA devices, made of ranks that have met on their hosts. It works
// by kernels over peer memory where all devices are of one machine and map each other. Else it works by NCCL,
// which is opened only where it is needed.
// See docs/scaling-design.md, "Exchanges between GPUs".
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "ops/op_table.h"

namespace dsv4::backend {

struct CudaGroupOptions {
  std::chrono::milliseconds timeout{120000};
  // Ranks send to each other, which NCCL does; else they exchange, all at once.
  bool sends = false;
  // Exchanges by kernels over peer memory; off: by NCCL.
  bool peers = true;
  // The smallest of them have their round in every word, so that no reader waits for a flag (ll_exchange.h).
  // With DSV4_CUDA_PACKED_EXCHANGE=0 on any rank they are like the others.
  bool packed = true;
  // Told why exchanges go by NCCL although `peers` is set. May be empty.
  std::function<void(const std::string&)> without_peers;
};

// All ranks of `hosts` call it, each with a backend of MakeCudaBackend, not wrapped by another, on a device
// of its own unless DevicesAreShared. `hosts` outlives the group. Errors, the same on all ranks: those of
// comm::NcclLibrary::Open and comm::JoinNccl, if it comes to them; FailedPrecondition in a build without
// CUDA.
Result<std::unique_ptr<comm::Communicator>> MakeCudaGroup(const ops::Backend& backend,
                                                          comm::Communicator& hosts,
                                                          const CudaGroupOptions& options);

}  // namespace dsv4::backend
