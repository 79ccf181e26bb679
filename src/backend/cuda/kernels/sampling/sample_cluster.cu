// Op sample by a cluster of blocks for each row of logits, which stay in shared memory.
#include <cooperative_groups.h>

#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/sampling/sample_rows.cuh"
#include "backend/cuda/lowering/select/sampling.h"

namespace dsv4::backend::cuda {
namespace {

namespace cg = cooperative_groups;

struct ClusterTeam {
  static constexpr int kBlocks = kSampleClusterBlocks;
  static __device__ int Rank() { return static_cast<int>(cg::this_cluster().block_rank()); }
  static __device__ void Meet() { cg::this_cluster().sync(); }
  template <typename T>
  static __device__ T* Of(T* p, unsigned rank) {
    return cg::this_cluster().map_shared_rank(p, rank);
  }
};

__global__ void __cluster_dims__(kSampleClusterBlocks) __launch_bounds__(sampling_rows::kThreads)
    SampleClusterKernel(const SampleParams p) {
  extern __shared__ __align__(16) float piece_logits[];
  BeginKernel();
  sampling_rows::SampleRow<ClusterTeam>(p, blockIdx.x / kSampleClusterBlocks, piece_logits);
  ClusterTeam::Meet();  // Memory of this block that others still read stays until then.
}

}  // namespace

void LaunchSampleCluster(LaunchContext& context, const SampleParams& params, int64_t num_rows) {
  context.Launch(SampleClusterKernel, static_cast<unsigned>(num_rows * kSampleClusterBlocks),
                 sampling_rows::kThreads, SamplePieceBytes(params.vocab_size), params);
}

}  // namespace dsv4::backend::cuda
