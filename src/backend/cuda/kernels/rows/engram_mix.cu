// engram_mix: a block a stream of a token, sums in fp32 by lanes, warps and then the block.
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/rows/engram_mix.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 256;

// Grid: tokens, streams. A block reads all of its stream before it writes any of it, so streams and out may be the same.
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
  float dots = 0.0F;
  float stream_squares = 0.0F;
  float key_squares = 0.0F;
  for (int d = static_cast<int>(threadIdx.x); d < dim; d += kThreads) {
    const float s = ToFloat(in[d]);
    const float k = ToFloat(key[d]);
    dots = fmaf(s * k, q_weight[stream * dim + d] * k_weight[stream * dim + d], dots);
    stream_squares = fmaf(s, s, stream_squares);
    key_squares = fmaf(k, k, key_squares);
  }
  const auto width = static_cast<float>(dim);
  const float stream_norm = 1.0F / sqrtf(BlockSum(stream_squares) / width + eps);
  const float key_norm = 1.0F / sqrtf(BlockSum(key_squares) / width + eps);
  const float similarity = BlockSum(dots) * stream_norm * key_norm / sqrtf(width);
  const float root =
      copysignf(sqrtf(fmaxf(fabsf(similarity), static_cast<float>(ops::kLeastEngramSimilarity))), similarity);
  const float gate = is_image != nullptr && is_image[token] != 0 ? 0.0F : 1.0F / (1.0F + expf(-root));
  T* const to = out + (token * mult + stream) * dim;
  for (int d = static_cast<int>(threadIdx.x); d < dim; d += kThreads)
    to[d] = FromFloat<T>(fmaf(gate, ToFloat(value[d]), ToFloat(in[d])));
}

}  // namespace

void LaunchEngramMix(CudaContext& context, const ops::EngramMixArgs& args) {
  const dim3 grid(static_cast<unsigned>(args.streams.shape[0]), static_cast<unsigned>(args.streams.shape[1]));
  WithElement(args.streams.dtype, [&]<typename T>(T*) {
    context.Launch(EngramMixKernel<T>, grid, kThreads, 0, args.streams.as<const T>(),
                   args.mixed.as<const T>(), args.q_weight.as<const float>(), args.k_weight.as<const float>(),
                   args.is_image.as<const int32_t>(), args.out.as<T>(),
                   static_cast<int>(args.streams.shape[2]), args.eps);
  });
}

}  // namespace dsv4::backend::cuda
