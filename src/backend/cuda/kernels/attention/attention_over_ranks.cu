#include "backend/cuda/kernels/attention/attention_over_ranks.cuh"
#include "backend/cuda/runtime/cuda_context.h"

namespace dsv4::backend::cuda {
namespace {

using over_ranks::AttentionOverRanksKernel;
using over_ranks::kBlocks;
using over_ranks::Memory;
using over_ranks::TileResults;

using Kernel = void (*)(AttentionOverRanks);
template <int kDim>
Kernel KernelFor(int num_ranks) {
  switch (num_ranks) {
    case 2:
      return AttentionOverRanksKernel<kDim, 2>;
    case 4:
      return AttentionOverRanksKernel<kDim, 4>;
    case 8:
      return AttentionOverRanksKernel<kDim, 8>;
    default:
      return nullptr;
  }
}

}  // namespace

void LaunchAttentionOverRanks(CudaContext& context, const AttentionOverRanks& params) {
  const dim3 grid(kBlocks, static_cast<unsigned>(params.part.num_heads / kAttentionHeads));
  const auto launch = [&]<int kDim>() {
    const size_t shared_bytes =
        sizeof(Memory<kDim>) + static_cast<size_t>(params.tiles_of_block - 1) * sizeof(TileResults<kDim>);
    context.Launch(KernelFor<kDim>(params.links.size), grid, kAttentionThreads, shared_bytes, params);
  };
  params.part.head_dim == 512 ? launch.template operator()<512>() : launch.template operator()<128>();
}

}  // namespace dsv4::backend::cuda
