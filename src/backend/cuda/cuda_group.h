// A group whose data lies in the memory of CUDA devices, made of ranks that have met on their hosts: NCCL for what is large, and one
// kernel over peer memory for what is small where all devices are of one machine and map each other.
// See docs/scaling.md, "On GPUs".
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
  // Small exchanges by a kernel over peer memory; off: all by NCCL.
  bool peers = true;
  // The smallest of them with their round in every word, so that nobody waits for a flag (kernels/peer_exchange.h); with
  // DSV4_CUDA_PACKED_EXCHANGE=0 on any rank they are like the others.
  bool packed = true;
  // Told why small exchanges go by NCCL although `peers` is set. May be empty.
  std::function<void(const std::string&)> without_peers;
};

// All ranks of `hosts` call it, each with a backend of MakeCudaBackend, not wrapped by another, on a device of its own. `hosts` outlives the group. Errors, the
// same on all ranks: those of comm::NcclLibrary::Open and comm::JoinNccl; FailedPrecondition in a build without CUDA.
Result<std::unique_ptr<comm::Communicator>> MakeCudaGroup(const ops::Backend& backend,
                                                          comm::Communicator& hosts,
                                                          const CudaGroupOptions& options);

}  // namespace dsv4::backend
