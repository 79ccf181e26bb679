// Kernel of sample for devices without clusters, or whose blocks have too little shared memory.
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/sampling/sample_rows.cuh"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

struct BlockTeam {
  static constexpr int kBlocks = 1;
  static __device__ int Rank() { return 0; }
  static __device__ void Meet() { __syncthreads(); }
  template <typename T>
  static __device__ T* Of(T* p, unsigned) {
    return p;
  }
};

// A block a row. `rows`: [num_rows, vocab_size].
__global__ void __launch_bounds__(sampling_rows::kThreads)
    SampleRowKernel(const SampleParams p, float* rows) {
  BeginKernel();
  sampling_rows::SampleRow<BlockTeam>(p, blockIdx.x, rows + int64_t{blockIdx.x} * p.vocab_size);
}

}  // namespace

void LaunchSampleRow(LaunchContext& context, const SampleParams& params, int64_t num_rows, float* rows) {
  context.Launch(SampleRowKernel, static_cast<unsigned>(num_rows), sampling_rows::kThreads, 0, params, rows);
}

}  // namespace dsv4::backend::cuda
