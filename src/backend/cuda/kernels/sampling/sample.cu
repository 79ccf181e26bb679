// The op sample, and its kernel for devices without clusters, or whose blocks have too little shared memory.
#include <vector>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/sampling/sample_rows.cuh"
#include "backend/cuda/lowering/select/sampling.h"

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

// A thread a bias. `logits`: [num_rows, vocab_size].
__global__ void SampleBiasesKernel(const ops::RowBias* biases, int num_biases, float* logits,
                                   int vocab_size) {
  BeginKernel();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < num_biases)
    logits[int64_t{biases[i].row} * vocab_size + biases[i].added.token] += biases[i].added.bias;
}

Status AddBiases(CudaContext& context, const ops::SampleArgs& args) {
  constexpr unsigned kThreads = 128;
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const DeviceArray<ops::RowBias> staged,
      context.StageFrom<ops::RowBias>(
          args.biases, [](std::span<const ops::RowBias> all, std::vector<ops::RowBias>* biases) {
            biases->assign(all.begin(), all.end());
          }));
  const auto num_biases = static_cast<unsigned>(args.biases.size());
  context.Launch(SampleBiasesKernel, (num_biases + kThreads - 1) / kThreads, kThreads, 0, staged.data,
                 static_cast<int>(num_biases), args.logits.as<float>(),
                 static_cast<int>(args.logits.shape[1]));
  return {};
}

}  // namespace

Status Sample(CudaContext& context, const ops::SampleArgs& args) {
  const int64_t num_rows = args.logits.shape[0];
  const int64_t vocab_size = args.logits.shape[1];
  if (num_rows == 0) return {};
  if (!args.biases.empty()) DSV4_RETURN_IF_ERROR(AddBiases(context, args));
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const DeviceArray<RowChoice> staged,
      context.StageFrom<RowChoice>(
          args.choices, [](std::span<const sampling::ChoiceParams> all, std::vector<RowChoice>* choices) {
            for (const sampling::ChoiceParams& choice : all) {
              choices->push_back({.uniform = choice.uniform,
                                  .temperature = choice.temperature,
                                  .top_p = choice.top_p,
                                  .lowest_exponent = choice.lowest_exponent(),
                                  .top_k = choice.top_k});
            }
          }));
  const SampleParams params = {.logits = args.logits.as<const float>(),
                               .allowed = args.allowed.as<const uint8_t>(),
                               .choices = staged.data,
                               .tokens = args.tokens.as<int32_t>(),
                               .faults = args.faults.as<int32_t>(),
                               .vocab_size = static_cast<int>(vocab_size)};
  const Plan<SamplePath> plan = ChooseSample({.vocab_size = vocab_size}, context.limits());
  context.Chose(plan);
  if (plan.kernel == SamplePath::kCluster) {
    LaunchSampleCluster(context, params, num_rows);
    return {};
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(float* const rows, context.Scratch<float>(num_rows * vocab_size));
  context.Launch(SampleRowKernel, static_cast<unsigned>(num_rows), sampling_rows::kThreads, 0, params, rows);
  return {};
}

}  // namespace dsv4::backend::cuda
