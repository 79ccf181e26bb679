// Kernel of attention over ranks for a few tokens: queries go out, parts of values come back, merged and
// rotated in one launch.
#include <algorithm>

#include "backend/cuda/kernels/attention/attention_over_ranks.cuh"
#include "backend/cuda/lowering/select/attention.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

using over_ranks::AttentionOverRanksKernel;
using over_ranks::Memory;
using over_ranks::TileResults;

using Kernel = void (*)(AttentionOverRanks);
template <int kDim, int kBlocks>
Kernel KernelFor(int num_ranks) {
  switch (num_ranks) {
    case 2:
      return AttentionOverRanksKernel<kDim, 2, kBlocks>;
    case 4:
      return AttentionOverRanksKernel<kDim, 4, kBlocks>;
    case 8:
      return AttentionOverRanksKernel<kDim, 8, kBlocks>;
    default:
      return nullptr;
  }
}
template <int kDim>
Kernel KernelFor(int num_ranks, int blocks) {
  return blocks == 4 ? KernelFor<kDim, 4>(num_ranks) : KernelFor<kDim, 8>(num_ranks);
}

template <int kDim>
size_t SharedBytes(int64_t tiles_of_block) {
  return sizeof(Memory<kDim>) + static_cast<size_t>(tiles_of_block - 1) * sizeof(TileResults<kDim>);
}

}  // namespace

void LaunchAttentionOverRanks(LaunchContext& context, const AttentionOverRanks& params, int64_t num_tiles) {
  const int64_t groups = params.part.num_heads / kAttentionHeads;
  const auto launch = [&]<int kDim>() {
    const auto room = [&](int of_cluster) {
      return context.MostClusters(
          reinterpret_cast<const void*>(KernelFor<kDim>(params.links.size, of_cluster)),
          static_cast<unsigned>(of_cluster), kAttentionThreads, SharedBytes<kDim>(kMaxOverRanksTiles));
    };
    const int blocks = BlocksOfAttentionOverRanks(num_tiles, groups * params.part.num_tokens, room);
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(groups),
                    static_cast<unsigned>(params.part.num_tokens));
    context.Launch(KernelFor<kDim>(params.links.size, blocks), grid, kAttentionThreads,
                   SharedBytes<kDim>(std::max<int64_t>(1, CeilDiv(num_tiles, int64_t{blocks}))), params);
  };
  params.part.head_dim == 512 ? launch.template operator()<512>() : launch.template operator()<128>();
}

}  // namespace dsv4::backend::cuda
