// Device group of a CUDA rank: kernels over peer memory where all GPUs are of one machine, else NCCL.
#include "backend/cuda/groups/cuda_group.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>
#include <utility>

#include "backend/cuda/cuda_variables.h"
#include "backend/cuda/groups/cuda_stream.h"
#include "backend/cuda/groups/peer_group.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "comm/collectives.h"
#include "comm/loopback_group.h"
#include "comm/nccl_group.h"

namespace dsv4::backend {
namespace {

// A group by NCCL with the stream that it works on.
class GroupOnStream final : public comm::Communicator {
 public:
  explicit GroupOnStream(std::shared_ptr<cuda::CudaContext> context) : context_(std::move(context)) {}

  Status Join(comm::Communicator& hosts, const CudaGroupOptions& options) {
    auto stream = cuda::CudaStream::Create(context_->shared_queue());
    DSV4_RETURN_IF_ERROR(comm::Agree(hosts, stream ? Status() : stream.error()));
    stream_ = std::move(*stream);
    DSV4_ASSIGN_OR_RETURN_STATUS(
        group_, comm::JoinNccl(hosts, *stream_, comm::NcclLibrary::Open(), {.timeout = options.timeout}));
    return {};
  }

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  Status Barrier(comm::Wait wait) override { return group_->Barrier(wait); }
  Status Broadcast(std::span<std::byte> data, int root, comm::Wait wait) override {
    return group_->Broadcast(data, root, wait);
  }
  Status AllGather(std::span<const std::byte> mine, int64_t num_rows, std::span<const int64_t> row_bytes,
                   std::span<std::byte> all) override {
    return group_->AllGather(mine, num_rows, row_bytes, all);
  }
  Status AllToAll(std::span<const std::byte> mine, int64_t num_rows, std::span<const int64_t> row_bytes,
                  std::span<std::byte> parts) override {
    return group_->AllToAll(mine, num_rows, row_bytes, parts);
  }
  Status AllReduceSum(std::span<float> values) override { return group_->AllReduceSum(values); }
  Status ReduceScatterSum(std::span<const float> values, std::span<const int64_t> counts,
                          std::span<float> mine) override {
    return group_->ReduceScatterSum(values, counts, mine);
  }
  Status Send(std::span<const std::byte> data, int to) override { return group_->Send(data, to); }
  Status Recv(std::span<std::byte> data, int from) override { return group_->Recv(data, from); }
  Status Check() override { return group_->Check(); }
  void Fail(const Status& why) override { group_->Fail(why); }
  Result<std::unique_ptr<comm::Communicator>> Split(int colour) override { return group_->Split(colour); }

 private:
  std::shared_ptr<cuda::CudaContext> context_;
  std::unique_ptr<cuda::CudaStream> stream_;
  std::unique_ptr<comm::Communicator> group_;
};

}  // namespace

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
  auto group = std::make_unique<GroupOnStream>(context);
  DSV4_TRY(group->Join(hosts, options));
  return group;
}

}  // namespace dsv4::backend
