// Mixes of hyper-connections for many tokens of four bf16 streams, several columns a thread.
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/eight_columns.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/hyper_connection/hc_many.h"
#include "backend/cuda/kernels/hyper_connection/hc_mixes.cuh"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMixesThreads = 128;

// post, comb and pre, of some tokens a block; of 8192 tokens all blocks at once.
__global__ void __launch_bounds__(kMixesThreads, 8)
    HcManyMixesKernel(const HcPreParams p, int num_tokens, float* pre) {
  BeginKernel();
  __shared__ MixesMemory memory;
  const auto block = static_cast<int>(blockIdx.x);
  HcMixesOfBlock<kMixesThreads>(p, block, num_tokens, memory);
  const int t = static_cast<int>(threadIdx.x);
  const int64_t first = int64_t{block} * kMixesOfBlock;
  if (t >= min(kMixesOfBlock, num_tokens - static_cast<int>(first)) * kHcMult) return;
  const int row = t % kHcMult;
  const float* const dots = p.dots + ((first + t / kHcMult) * (kHcMixRows + 1) + row) * p.num_parts;
  const float logit =
      HcLogit(memory.factors[t / kHcMult], SumOfParts(dots, p.num_parts), p.scale[0], p.base[row]);
  pre[first * kHcMult + t] = StreamWeight(p, first + t / kHcMult, row, Sigmoid(logit) + p.hc_eps, true);
}

// u. Grid: tokens, pieces of u.
__global__ void __launch_bounds__(kThreads)
    HcManyMixKernel(const Bf16* streams, Bf16* u, const float* all_pre, int64_t dim) {
  BeginKernel();
  const int64_t token = blockIdx.x;
  const int64_t d = (blockIdx.y * int64_t{kThreads} + threadIdx.x) * kEightColumns;
  if (d >= dim) return;
  float values[kHcMult][kEightColumns];
#pragma unroll
  for (int i = 0; i < kHcMult; ++i) LoadEight(streams + (token * kHcMult + i) * dim + d, values[i]);
  const float4 four = *reinterpret_cast<const float4*>(all_pre + token * kHcMult);
  const float pre[kHcMult] = {four.x, four.y, four.z, four.w};
  float sums[kEightColumns];
#pragma unroll
  for (int k = 0; k < kEightColumns; ++k) sums[k] = MixOf(pre, kHcMult, [&](int i) { return values[i][k]; });
  StoreEight(u + token * dim + d, sums);
}

}  // namespace

void LaunchManyMixes(LaunchContext& context, const ops::HcPreArgs& args, const HcPreParams& params,
                     float* pre) {
  const auto num_tokens = static_cast<int>(args.streams.shape[0]);
  context.Launch(HcManyMixesKernel, static_cast<unsigned>(MixBlocks(num_tokens)), kMixesThreads, 0, params,
                 num_tokens, pre);
  const dim3 grid(static_cast<unsigned>(num_tokens),
                  static_cast<unsigned>(CeilDiv(params.dim, kThreads * kEightColumns)));
  context.Launch(HcManyMixKernel, grid, kThreads, 0, args.streams.as<const Bf16>(), args.u.as<Bf16>(),
                 static_cast<const float*>(pre), params.dim);
}

}  // namespace dsv4::backend::cuda
