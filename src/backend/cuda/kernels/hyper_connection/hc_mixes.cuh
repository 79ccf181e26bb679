// Outputs post and comb (hc_mix.cuh) of many tokens by one block. Iterations that wait for themselves all the
// time run beside each other, a lane a token.
#pragma once

#include "backend/cuda/kernels/hyper_connection/hc_mix.cuh"

namespace dsv4::backend::cuda {

// So few that a block is done before those beside it, which read weights.
inline constexpr int kMixesOfBlock = 8;

// Blocks for so many tokens.
inline int MixBlocks(int num_tokens) { return (num_tokens + kMixesOfBlock - 1) / kMixesOfBlock; }

// Shared memory of a block.
struct MixesMemory {
  float factors[kMixesOfBlock];
  float comb[kMixesOfBlock][17];  // Four by four, and one so that lanes' matrices begin in different banks.
};

// Kernel for four streams; tokens [block * kMixesOfBlock, num_tokens), up to as many as a block has. By a
// block of kThreads.
template <int kThreads>
__device__ void HcMixesOfBlock(const HcPreParams& p, int block, int num_tokens, MixesMemory& m) {
  static_assert(kThreads >= kMixesOfBlock);
  const int t = static_cast<int>(threadIdx.x);
  const int64_t first = int64_t{block} * kMixesOfBlock;
  const int count = min(kMixesOfBlock, num_tokens - static_cast<int>(first));
  const float* const dots = p.dots + first * (kHcMixRows + 1) * p.num_parts;
  const auto dot = [&](int token, int row) {
    return SumOfParts(dots + (token * (kHcMixRows + 1) + row) * p.num_parts, p.num_parts);
  };
  if (t < count) m.factors[t] = NormFactor(dot(t, kHcMixRows), p.dim * kHcMult, p.norm_eps);
  __syncthreads();
  for (int i = t; i < count * kHcMult * kHcMult; i += kThreads) {
    const int token = i / (kHcMult * kHcMult);
    const int k = i % (kHcMult * kHcMult);
    const int row = 2 * kHcMult + k;
    m.comb[token][k] = HcLogit(m.factors[token], dot(token, row), p.scale[2], p.base[row]);
  }
  // The first warp iterates.
  for (int i = kThreads - 1 - t; i < count * kHcMult; i += kThreads) {
    const int token = i / kHcMult;
    const int row = kHcMult + i % kHcMult;
    const float logit = HcLogit(m.factors[token], dot(token, row), p.scale[1], p.base[row]);
    Store(p.post, first * kHcMult + i, 2.0F * Sigmoid(logit));
  }
  __syncthreads();
  if (t < count) SinkhornOfFour(m.comb[t], p.hc_eps, p.sinkhorn_iters);
  __syncthreads();
  for (int i = t; i < count * kHcMult * kHcMult; i += kThreads)
    Store(p.comb, first * kHcMult * kHcMult + i, m.comb[i / (kHcMult * kHcMult)][i % (kHcMult * kHcMult)]);
}

}  // namespace dsv4::backend::cuda
