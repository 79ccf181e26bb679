// hc_post: new streams from the old ones and what the sub-layer gives.
#include "backend/cuda/collectives/ll_exchange.cuh"
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/eight_columns.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/hyper_connection/hc_mix.cuh"
#include "backend/cuda/kernels/hyper_connection/hc_post.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kPostThreads = 128;

// One thread a column of a token: it reads all streams there before it writes them, so residual and out may
// be the same.
template <typename T>
__global__ void HcPostKernel(const T* y, const T* residual, const float* post, const float* comb, T* out,
                             int mult, int64_t dim) {
  BeginKernel();
  const int64_t token = blockIdx.x;
  const int64_t d = blockIdx.y * int64_t{blockDim.x} + threadIdx.x;
  if (d >= dim) return;
  const T* const in = residual + token * mult * dim + d;
  float streams[ops::kMaxHcMult];
#pragma unroll
  for (int i = 0; i < ops::kMaxHcMult; ++i) {
    if (i < mult) streams[i] = ToFloat(in[i * dim]);
  }
  const float value = ToFloat(y[token * dim + d]);
  for (int j = 0; j < mult; ++j) {
    float sum = post[token * mult + j] * value;
#pragma unroll
    for (int i = 0; i < ops::kMaxHcMult; ++i) {
      if (i < mult) sum = fmaf(comb[(token * mult + i) * mult + j], streams[i], sum);
    }
    out[(token * mult + j) * dim + d] = FromFloat<T>(sum);
  }
}

// Work of moe_combine that is left for hc_post.
struct Combined {
  const float* routed;
  const void* shared;  // Null: 0. F32 where it is added before a sum over ranks.
  void* y;
  PeerLinks links;
  float* sum;
};

enum class Before { kNothing, kCombine, kSumOverRanks };

// The same for the release's four streams, eight columns a thread. Unless nothing was before, y is what
// moe_combine gives, and is written too. Grid: tokens, pieces of y.
template <typename T, Before kBefore>
__global__ void __launch_bounds__(kPostThreads)
    HcPostOfFourKernel(const T* y, const T* residual, const float* post, const float* comb, T* out,
                       int64_t dim, const __grid_constant__ Combined combined) {
  BeginKernel();
  const int64_t token = blockIdx.x;
  const int64_t d = (blockIdx.y * int64_t{kPostThreads} + threadIdx.x) * kEightColumns;
  float values[kEightColumns];
  float streams[4][kEightColumns];
  if constexpr (kBefore == Before::kSumOverRanks) {
    SumOverRanks ranks(combined.links);
    if (d < dim) {
      const int64_t begin = token * dim + d;
      LoadEight(combined.routed + begin, values);
      if (combined.shared != nullptr) {
        float added[kEightColumns];
        LoadEight(static_cast<const float*>(combined.shared) + begin, added);
#pragma unroll
        for (int k = 0; k < kEightColumns; ++k) values[k] += added[k];
      }
      ranks.PushRun(begin, values);
      ranks.TakeRun(begin, values);
      StoreEight(combined.sum + begin, values);
#pragma unroll
      for (int k = 0; k < kEightColumns; ++k) values[k] = ToFloat(FromFloat<T>(0.0F + values[k]));
      StoreEight(static_cast<T*>(combined.y) + begin, values);
    }
    ranks.EndRound(ranks.LeaveBlock(__syncthreads_or(ranks.whole() ? 0 : 1) == 0));
  }
  if (d >= dim) return;
  if constexpr (kBefore == Before::kCombine) {
    float routed[kEightColumns];
    LoadEight(combined.routed + token * dim + d, routed);
    if (combined.shared != nullptr) {
      LoadEight(static_cast<const T*>(combined.shared) + token * dim + d, values);
    } else {
#pragma unroll
      for (int k = 0; k < kEightColumns; ++k) values[k] = 0;
    }
#pragma unroll
    for (int k = 0; k < kEightColumns; ++k) values[k] = ToFloat(FromFloat<T>(values[k] + routed[k]));
    StoreEight(static_cast<T*>(combined.y) + token * dim + d, values);
  }
  if constexpr (kBefore == Before::kNothing) LoadEight(y + token * dim + d, values);
#pragma unroll
  for (int i = 0; i < 4; ++i) LoadEight(residual + (token * 4 + i) * dim + d, streams[i]);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float factors[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) factors[i] = comb[(token * 4 + i) * 4 + j];
    float sums[kEightColumns];
#pragma unroll
    for (int k = 0; k < kEightColumns; ++k) {
      sums[k] = PostOf(post[token * 4 + j], values[k], factors, [&](int i) { return streams[i][k]; });
    }
    StoreEight(out + (token * 4 + j) * dim + d, sums);
  }
}

}  // namespace

void LaunchHcPost(LaunchContext& context, const HcPostBefore& post, DType dtype) {
  const dim3 blocks(static_cast<unsigned>(post.num_tokens),
                    static_cast<unsigned>(CeilDiv(post.dim, kPostThreads * kEightColumns)));
  const Combined combined =
      post.routed == nullptr ? Combined{} : Combined{post.routed, post.shared, post.y, post.links, post.sum};
  WithElement(dtype, [&]<typename T>(T*) {
    const auto kernel = post.links.size > 0      ? HcPostOfFourKernel<T, Before::kSumOverRanks>
                        : post.routed != nullptr ? HcPostOfFourKernel<T, Before::kCombine>
                                                 : HcPostOfFourKernel<T, Before::kNothing>;
    context.Launch(kernel, blocks, kPostThreads, 0, static_cast<const T*>(post.y),
                   static_cast<const T*>(post.residual), post.post, post.comb, static_cast<T*>(post.out),
                   post.dim, combined);
  });
}

void LaunchHcPostOfAny(LaunchContext& context, const ops::HcPostArgs& args) {
  constexpr int kThreads = 128;
  const int64_t dim = args.residual.shape[2];
  const dim3 grid(static_cast<unsigned>(args.residual.shape[0]),
                  static_cast<unsigned>(CeilDiv(dim, kThreads)));
  WithElement(args.residual.dtype, [&]<typename T>(T*) {
    context.Launch(HcPostKernel<T>, grid, kThreads, 0, args.y.as<const T>(), args.residual.as<const T>(),
                   args.post.as<const float>(), args.comb.as<const float>(), args.out.as<T>(),
                   static_cast<int>(args.residual.shape[1]), dim);
  });
}

}  // namespace dsv4::backend::cuda
