// Device group of a CUDA rank: kernels over peer memory where all GPUs are of one machine, else NCCL.
#include "backend/cuda/groups/cuda_group.h"

#include <fmt/format.h>

#include <utility>

#include "backend/cuda/cuda_variables.h"
#include "backend/cuda/groups/cuda_stream.h"
#include "backend/cuda/groups/peer_group.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "comm/collectives.h"
#include "comm/loopback_group.h"
#include "comm/nccl_group.h"

namespace dsv4::backend {

Result<std::unique_ptr<comm::Communicator>> MakeCudaGroup(const ops::Backend& backend,
                                                          comm::Communicator& hosts,
                                                          const CudaGroupOptions& options) {
  const auto context = std::dynamic_pointer_cast<cuda::CudaContext>(backend.context);
  DSV4_TRY(comm::Agree(hosts, context != nullptr
                                  ? Status()
                                  : InvalidArgument(fmt::format(
                                        "backend {}: wraps another; want what it wraps", backend.name))));
  if (options.peers && !options.sends) {
    const Result<CudaVariables> variables = ReadCudaVariables();
    DSV4_TRY(comm::Agree(hosts, variables ? Status() : variables.error()));
    auto peers = cuda::JoinPeers(
        hosts, context, {.timeout = options.timeout, .packed = options.packed && variables->packed_exchange});
    if (peers || comm::IsLoopback(hosts)) return peers;  // NCCL would wait for ranks that there are not.
    DSV4_TRY(hosts.Check());
    if (options.without_peers) options.without_peers(peers.error().message());
  }
  auto stream = cuda::CudaStream::Create(context->shared_queue());
  DSV4_TRY(comm::Agree(hosts, stream ? Status() : stream.error()));
  cuda::CudaStream& device = **stream;
  using Kept = std::pair<std::shared_ptr<cuda::CudaContext>, std::unique_ptr<cuda::CudaStream>>;
  return comm::JoinNccl(hosts, device, comm::NcclLibrary::Open(), {.timeout = options.timeout},
                        std::make_shared<Kept>(context, std::move(*stream)));
}

}  // namespace dsv4::backend
