// Mixes and posts of hyper-connections for many tokens of four bf16 streams, several columns a thread.
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/eight_columns.cuh"
#include "backend/cuda/device/numeric/wide_bf16.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/hyper_connection/hc_many.h"
#include "backend/cuda/kernels/hyper_connection/hc_mixes.cuh"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMixesThreads = 128;

__device__ __forceinline__ uint4 ReadEight(const uint16_t* data) {
  return *reinterpret_cast<const uint4*>(data);
}
// Rounded. kFinite: no NaN among what they are sums of.
template <bool kFinite>
__device__ __forceinline__ uint32_t PairOfSums(float low, float high) {
  if constexpr (kFinite) return Bf16Pair(low, high);
  return Bf16FromFloat(low) | static_cast<uint32_t>(Bf16FromFloat(high)) << 16;
}
// Element k, divided by kWideUnit if they are all finite.
template <bool kFinite>
__device__ __forceinline__ double Element(const uint4& eight, int k) {
  if constexpr (kFinite) return WideBf16(PairOf(eight, k), k % 2);
  return static_cast<double>(FloatBf16(PairOf(eight, k), k % 2));
}

// post, comb and pre, of some tokens a block; of 8192 tokens all blocks at once.
__global__ void __launch_bounds__(kMixesThreads, 8)
    HcManyMixesKernel(const HcPreParams p, int num_tokens, double* pre) {
  BeginKernel();
  __shared__ MixesMemory memory;
  const auto block = static_cast<int>(blockIdx.x);
  HcMixesOfBlock<kMixesThreads>(p, block, num_tokens, memory);
  const int t = static_cast<int>(threadIdx.x);
  const int64_t first = int64_t{block} * kMixesOfBlock;
  if (t >= min(kMixesOfBlock, num_tokens - static_cast<int>(first)) * kHcMult) return;
  const int row = t % kHcMult;
  const double* const dots = p.dots + ((first + t / kHcMult) * (kHcMixRows + 1) + row) * p.num_parts;
  const double logit =
      HcLogit(memory.factors[t / kHcMult], SumOfParts(dots, p.num_parts), p.scale[0], p.base[row]);
  pre[first * kHcMult + t] =
      StreamWeight(p, first + t / kHcMult, row, Sigmoid(logit) + static_cast<double>(p.hc_eps), true);
}

// u. Grid: tokens, pieces of u.
__global__ void __launch_bounds__(kThreads)
    HcManyMixKernel(const uint16_t* streams, uint16_t* u, const double* all_pre, int64_t dim) {
  BeginKernel();
  const int64_t token = blockIdx.x;
  const int64_t d = (blockIdx.y * int64_t{kThreads} + threadIdx.x) * kEightColumns;
  if (d >= dim) return;
  uint4 values[kHcMult];
  FinitePairs finite;
#pragma unroll
  for (int i = 0; i < kHcMult; ++i) values[i] = ReadEight(streams + (token * kHcMult + i) * dim + d);
  const auto* const pairs = reinterpret_cast<const double2*>(all_pre + token * kHcMult);
  const double2 low = pairs[0];
  const double2 high = pairs[1];
#pragma unroll
  for (int i = 0; i < kHcMult; ++i) finite.Add(values[i]);
  const auto mix = [&]<bool kFinite>() {
    constexpr double kUnit = kFinite ? kWideUnit : 1.0;
    const double pre[kHcMult] = {low.x * kUnit, low.y * kUnit, high.x * kUnit, high.y * kUnit};
    float sums[kEightColumns];
#pragma unroll
    for (int k = 0; k < kEightColumns; ++k) {
      double sum = 0.0;
#pragma unroll
      for (int i = 0; i < kHcMult; ++i) sum += pre[i] * Element<kFinite>(values[i], k);
      sums[k] = static_cast<float>(sum);
    }
    StorePairs(u + token * dim + d, PairOfSums<kFinite>(sums[0], sums[1]),
               PairOfSums<kFinite>(sums[2], sums[3]), PairOfSums<kFinite>(sums[4], sums[5]),
               PairOfSums<kFinite>(sums[6], sums[7]));
  };
  if (finite.all()) {
    mix.template operator()<true>();
  } else {
    mix.template operator()<false>();
  }
}

// Grid: tokens, pieces of y.
template <bool kCombines>
__global__ void __launch_bounds__(kThreads, 3) HcManyPostsKernel(const __grid_constant__ ManyPosts p) {
  constexpr int kFactors = (1 + kHcMult) * kHcMult;
  // [finite][stream of out][post, then comb by stream], and one so that two are read at once.
  __shared__ __align__(16) double factors[2][kHcMult][1 + kHcMult + 1];
  BeginKernel();
  const int64_t token = blockIdx.x;
  const int t = static_cast<int>(threadIdx.x);
  const int64_t d = (blockIdx.y * int64_t{kThreads} + t) * kEightColumns;
  const bool has_columns = d < p.dim;
  uint4 streams[kHcMult] = {};
  uint4 y = {};
  [[maybe_unused]] float4 routed[2] = {};
  [[maybe_unused]] const int64_t place = token * p.dim + d;
  if (has_columns) {
    if constexpr (kCombines) {
      routed[0] = *reinterpret_cast<const float4*>(p.routed + place);
      routed[1] = *reinterpret_cast<const float4*>(p.routed + place + 4);
      if (p.shared != nullptr) y = ReadEight(p.shared + place);
    } else {
      y = ReadEight(p.y + place);
    }
#pragma unroll
    for (int i = 0; i < kHcMult; ++i) streams[i] = ReadEight(p.residual + (token * kHcMult + i) * p.dim + d);
  }
  if (t < kFactors) {
    const double factor = static_cast<double>(t < kHcMult ? p.post[token * kHcMult + t]
                                                          : p.comb[token * kHcMult * kHcMult + t - kHcMult]);
    factors[0][t % kHcMult][t / kHcMult] = factor;
    factors[1][t % kHcMult][t / kHcMult] = factor * kWideUnit;
  }
  __syncthreads();
  if (!has_columns) return;
  if constexpr (kCombines) {
    // A sum of two fp32 is rounded alike in fp32 and by way of double.
    const float added[kEightColumns] = {routed[0].x, routed[0].y, routed[0].z, routed[0].w,
                                        routed[1].x, routed[1].y, routed[1].z, routed[1].w};
    uint32_t pairs[kEightColumns / 2];
#pragma unroll
    for (int k = 0; k < kEightColumns; k += 2) {
      const uint32_t pair = PairOf(y, k);
      pairs[k / 2] = Bf16Pair(FloatBf16(pair, 0) + added[k], FloatBf16(pair, 1) + added[k + 1]);
    }
    y = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    StorePairs(p.y + place, y.x, y.y, y.z, y.w);
  }
  FinitePairs finite;
  finite.Add(y);
#pragma unroll
  for (int i = 0; i < kHcMult; ++i) finite.Add(streams[i]);
  // Products of an fp32 factor and a bf16 are exact in double.
  const auto mix = [&]<bool kFinite>() {
    uint2 low[kHcMult] = {};
    uint2 high[kHcMult] = {};
    // Four columns at a time, in a loop that stays one, so that registers leave room for other blocks.
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < kHcMult; ++j) {
        float sums[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          double sum = factors[kFinite][j][0] * Element<kFinite>(y, k);
#pragma unroll
          for (int i = 0; i < kHcMult; ++i)
            sum = fma(factors[kFinite][j][1 + i], Element<kFinite>(streams[i], k), sum);
          sums[k] = static_cast<float>(sum);
        }
        low[j] = high[j];
        high[j] = make_uint2(PairOfSums<kFinite>(sums[0], sums[1]), PairOfSums<kFinite>(sums[2], sums[3]));
      }
      y = make_uint4(y.z, y.w, 0, 0);
#pragma unroll
      for (int i = 0; i < kHcMult; ++i) streams[i] = make_uint4(streams[i].z, streams[i].w, 0, 0);
    }
#pragma unroll
    for (int j = 0; j < kHcMult; ++j)
      StorePairs(p.out + (token * kHcMult + j) * p.dim + d, low[j].x, low[j].y, high[j].x, high[j].y);
  };
  if (finite.all()) {
    mix.template operator()<true>();
  } else {
    mix.template operator()<false>();
  }
}

unsigned Pieces(int64_t dim) { return static_cast<unsigned>(CeilDiv(dim, kThreads * kEightColumns)); }

}  // namespace

void LaunchManyMixes(LaunchContext& context, const ops::HcPreArgs& args, const HcPreParams& params,
                     double* pre) {
  const auto num_tokens = static_cast<int>(args.streams.shape[0]);
  context.Launch(HcManyMixesKernel, static_cast<unsigned>(MixBlocks(num_tokens)), kMixesThreads, 0, params,
                 num_tokens, pre);
  const dim3 grid(static_cast<unsigned>(num_tokens), Pieces(params.dim));
  context.Launch(HcManyMixKernel, grid, kThreads, 0, args.streams.as<const uint16_t>(), args.u.as<uint16_t>(),
                 static_cast<const double*>(pre), params.dim);
}

void LaunchManyPosts(LaunchContext& context, const ManyPosts& posts) {
  const dim3 grid(static_cast<unsigned>(posts.num_tokens), Pieces(posts.dim));
  context.Launch(posts.routed != nullptr ? HcManyPostsKernel<true> : HcManyPostsKernel<false>, grid, kThreads,
                 0, posts);
}

}  // namespace dsv4::backend::cuda
