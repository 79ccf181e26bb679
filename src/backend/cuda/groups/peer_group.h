// A group of GPUs of one machine that map each other's memory: what all of them exchange goes by one kernel
// (ll_exchange.h, chunked_exchange.h). One does not send to another: Send and Recv are Unimplemented.
#pragma once

#include <chrono>
#include <memory>

#include "backend/cuda/runtime/cuda_context.h"
#include "comm/communicator.h"

namespace dsv4::backend::cuda {

struct PeerOptions {
  std::chrono::milliseconds timeout{120000};
  bool packed = true;  // Smallest pieces take the LL protocol, where all ranks say so.
};

// All ranks of `hosts` call it, each with its device; `hosts` outlives the group. FailedPrecondition, on all
// ranks alike, with the rank and the reason. Reasons: ranks of several machines, more than eight ranks, two
// that share a device (but DevicesAreShared), or one that cannot map another's memory.
//
// On a loopback group (comm/loopback_group.h) it makes one that is a loopback on the device. Pieces that take
// the LL protocol must be as long on all ranks there, since it would wait for words that no rank sends. Other
// pieces of other ranks must be no longer than this rank's.
Result<std::unique_ptr<comm::Communicator>> JoinPeers(comm::Communicator& hosts,
                                                      std::shared_ptr<CudaContext> context,
                                                      const PeerOptions& options);

}  // namespace dsv4::backend::cuda
