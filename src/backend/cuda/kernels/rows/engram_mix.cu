// engram_mix: a block a stream of a token, sums in double by lanes, warps and then the block.
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/rows/engram_mix.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 256;

// Grid: tokens, streams. A block reads all of its stream before it writes any of it, so streams and out may
// be the same.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    EngramMixKernel(const T* streams, const T* mixed, const float* q_weight, const float* k_weight,
                    const int32_t* is_image, T* out, int dim, float eps) {
  BeginKernel();
  const int64_t token = blockIdx.x;
  const int stream = static_cast<int>(blockIdx.y);
  const int mult = static_cast<int>(gridDim.y);
  const T* const in = streams + (token * mult + stream) * dim;
  const T* const key = mixed + (token * (mult + 1) + stream) * dim;
  const T* const value = mixed + (token * (mult + 1) + mult) * dim;
  T* const to = out + (token * mult + stream) * dim;
  if (is_image != nullptr && is_image[token] != 0) {
    for (int d = static_cast<int>(threadIdx.x); d < dim; d += kThreads) to[d] = in[d];
    return;
  }
  double dots = 0.0;
  double stream_squares = 0.0;
  double key_squares = 0.0;
  for (int d = static_cast<int>(threadIdx.x); d < dim; d += kThreads) {
    const double s = Load(in, d);
    const double k = Load(key, d);
    const double weights =
        static_cast<double>(q_weight[stream * dim + d]) * static_cast<double>(k_weight[stream * dim + d]);
    dots = fma(s * k, weights, dots);
    stream_squares = fma(s, s, stream_squares);
    key_squares = fma(k, k, key_squares);
  }
  const auto width = static_cast<double>(dim);
  const auto norm = [&](double squares) {
    return 1.0 / sqrt(BlockSum(squares) / width + static_cast<double>(eps));
  };
  const double stream_norm = norm(stream_squares);
  const double similarity = BlockSum(dots) * stream_norm * norm(key_squares) / sqrt(width);
  const double root = copysign(sqrt(fmax(fabs(similarity), ops::kLeastEngramSimilarity)), similarity);
  const double gate = 1.0 / (1.0 + exp(-root));
  for (int d = static_cast<int>(threadIdx.x); d < dim; d += kThreads)
    Store(to, d, Load(in, d) + gate * Load(value, d));
}

}  // namespace

void LaunchEngramMix(LaunchContext& context, const ops::EngramMixArgs& args) {
  const dim3 grid(static_cast<unsigned>(args.streams.shape[0]), static_cast<unsigned>(args.streams.shape[1]));
  WithElement(args.streams.dtype, [&]<typename T>(T*) {
    context.Launch(EngramMixKernel<T>, grid, kThreads, 0, args.streams.as<const T>(),
                   args.mixed.as<const T>(), args.q_weight.as<const float>(), args.k_weight.as<const float>(),
                   args.is_image.as<const int32_t>(), args.out.as<T>(),
                   static_cast<int>(args.streams.shape[2]), args.eps);
  });
}

}  // namespace dsv4::backend::cuda
