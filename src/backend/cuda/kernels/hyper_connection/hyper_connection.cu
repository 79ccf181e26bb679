// The mix of hc_pre behind its dot products, and hc_head's.
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/hyper_connection/hc_mix.cuh"
#include "backend/cuda/kernels/hyper_connection/hyper_connection.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kMixThreads = 256;

// u[d] = sum_i pre[i] * stream i, over this block's share of the columns.
template <typename T>
__device__ void MixStreams(const float* pre, const T* x, T* u, int mult, int64_t dim, int64_t begin,
                           int64_t end) {
  for (int64_t d = begin + threadIdx.x; d < end; d += kMixThreads)
    u[d] = FromFloat<T>(MixOf(pre, mult, [&](int i) { return ToFloat(x[i * dim + d]); }));
}

// Columns of u a block.
constexpr int64_t kMixColumns = 1024;

// Grid: tokens, and in y first the small outputs, whose iterations take longest, then pieces of u.
template <typename T>
__global__ void __launch_bounds__(kMixThreads)
    HyperConnectionPreKernel(const T* streams, T* u, const HcPreParams p) {
  __shared__ float pre[ops::kMaxHcMult];
  BeginKernel();
  const int64_t token = blockIdx.x;
  const int mult = p.mult;
  const int t = static_cast<int>(threadIdx.x);
  if (blockIdx.y > 0) {
    if (t < mult) {
      const float own = Sigmoid(HcLogit(p, token, t, 0)) + p.hc_eps;
      pre[t] = StreamWeight(p, token, t, own, blockIdx.y == 1);
    }
    __syncthreads();
    const int64_t begin = (blockIdx.y - 1) * kMixColumns;
    MixStreams(pre, streams + token * mult * p.dim, u + token * p.dim, mult, p.dim, begin,
               min(p.dim, begin + kMixColumns));
    return;
  }
  HcMixOfToken<kMixThreads>(p, token);
}

// Grid: tokens, pieces of y. `given`: the streams' weights, else null and dot products tell them.
template <typename T>
__global__ void __launch_bounds__(kMixThreads)
    HyperConnectionHeadKernel(const T* streams, const float* all_dots, int num_parts, const float* scale,
                              const float* base, const float* given, T* y, int mult, int64_t dim,
                              float norm_eps, float hc_eps) {
  __shared__ float pre[ops::kMaxHcMult];
  BeginKernel();
  const int64_t token = blockIdx.x;
  const int t = static_cast<int>(threadIdx.x);
  if (t < mult && given != nullptr) {
    pre[t] = given[token * mult + t];
  } else if (t < mult) {
    const float* const dots = all_dots + token * (mult + 1) * num_parts;
    const float factor = NormFactor(SumOfParts(dots + mult * num_parts, num_parts), mult * dim, norm_eps);
    pre[t] =
        Sigmoid(HcLogit(factor, SumOfParts(dots + t * num_parts, num_parts), scale[0], base[t])) + hc_eps;
  }
  __syncthreads();
  const int64_t begin = blockIdx.y * kMixColumns;
  MixStreams(pre, streams + token * mult * dim, y + token * dim, mult, dim, begin,
             min(dim, begin + kMixColumns));
}

}  // namespace

void LaunchHcMix(LaunchContext& context, const ops::HcPreArgs& args, const HcPreParams& params) {
  static_assert(kMixThreads >= ops::kMaxHcMult * ops::kMaxHcMult);
  const dim3 grid(static_cast<unsigned>(args.streams.shape[0]),
                  static_cast<unsigned>(1 + CeilDiv(args.streams.shape[2], kMixColumns)));
  WithElement(args.streams.dtype, [&]<typename T>(T*) {
    context.Launch(HyperConnectionPreKernel<T>, grid, kMixThreads, 0, args.streams.as<const T>(),
                   args.u.as<T>(), params);
  });
}

void LaunchHcHead(LaunchContext& context, const ops::HcHeadArgs& args, const HcDots& dots) {
  const dim3 grid(static_cast<unsigned>(args.streams.shape[0]),
                  static_cast<unsigned>(CeilDiv(args.streams.shape[2], kMixColumns)));
  WithElement(args.streams.dtype, [&]<typename T>(T*) {
    context.Launch(HyperConnectionHeadKernel<T>, grid, kMixThreads, 0, args.streams.as<const T>(),
                   static_cast<const float*>(dots.data), dots.num_parts, args.scale.as<const float>(),
                   args.base.as<const float>(), args.given.as<const float>(), args.y.as<T>(),
                   static_cast<int>(args.streams.shape[1]), args.streams.shape[2], args.norm_eps,
                   args.hc_eps);
  });
}

}  // namespace dsv4::backend::cuda
