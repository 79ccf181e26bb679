// rms_norm and head_rms_norm.
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/device_numbers.cuh"
#include "backend/cuda/kernels/reduce.cuh"

namespace dsv4::backend::cuda {
namespace {

constexpr int kNormThreads = 512;
constexpr int kMaxHeld = 16;  // Elements a thread keeps between the two passes.

// One block a row, read once where a thread can hold its share. x may be y: a thread reads only the elements that it writes.
template <typename In, typename Out>
__global__ void __launch_bounds__(kNormThreads)
    RmsNormKernel(const In* x, int64_t x_stride, const float* weight, Out* y, int64_t y_stride, int64_t dim,
                  float eps) {
  float weights[kMaxHeld];
  const int64_t t = threadIdx.x;
  // Weights are nobody's output.
#pragma unroll
  for (int i = 0; i < kMaxHeld; ++i)
    weights[i] = t + i * kNormThreads < dim ? weight[t + i * kNormThreads] : 0.0F;
  BeginKernel();
  const In* const in = x + blockIdx.x * x_stride;
  Out* const out = y + blockIdx.x * y_stride;
  double held[kMaxHeld];
#pragma unroll
  for (int i = 0; i < kMaxHeld; ++i)
    held[i] = t + i * kNormThreads < dim ? Load(in, t + i * kNormThreads) : 0.0;
  double sum = 0.0;
#pragma unroll
  for (int i = 0; i < kMaxHeld; ++i) sum += held[i] * held[i];
  for (int64_t d = t + kMaxHeld * kNormThreads; d < dim; d += kNormThreads) sum += Load(in, d) * Load(in, d);
  const double mean_square = BlockSum(sum) / static_cast<double>(dim);
  const double factor = 1.0 / sqrt(mean_square + static_cast<double>(eps));
#pragma unroll
  for (int i = 0; i < kMaxHeld; ++i) {
    const int64_t d = t + i * kNormThreads;
    if (d < dim) Store(out, d, held[i] * (factor * static_cast<double>(weights[i])));
  }
  for (int64_t d = t + kMaxHeld * kNormThreads; d < dim; d += kNormThreads) {
    Store(out, d, Load(in, d) * (factor * static_cast<double>(weight[d])));
  }
}

// One warp a head; the release's five rounding points.
template <typename T>
__global__ void HeadRmsNormKernel(const T* x, T* y, int64_t num_rows, int64_t dim, float eps) {
  BeginKernel();
  const int64_t row = blockIdx.x * int64_t{blockDim.x / 32} + threadIdx.x / 32;
  if (row >= num_rows) return;
  const unsigned lane = threadIdx.x % 32;
  const T* const in = x + row * dim;
  T* const out = y + row * dim;
  double sum = 0.0;
  for (int64_t d = lane; d < dim; d += 32) {
    const double value = Load(in, d);
    sum += Held<T>(value * value);
  }
  const double mean = Held<T>(WarpSum(sum) / static_cast<double>(dim));
  const double shifted = Held<T>(mean + static_cast<double>(eps));
  const double factor = Held<T>(1.0 / sqrt(shifted));
  for (int64_t d = lane; d < dim; d += 32) Store(out, d, Load(in, d) * factor);
}

}  // namespace

Status RmsNorm(CudaContext& context, const ops::RmsNormArgs& args) {
  if (args.x.num_elements() == 0) return {};
  const auto rows = static_cast<unsigned>(args.x.shape[0]);
  WithElement(args.x.dtype, [&]<typename In>(In*) {
    WithElement(args.y.dtype, [&]<typename Out>(Out*) {
      context.Launch(RmsNormKernel<In, Out>, rows, kNormThreads, 0, args.x.as<const In>(), args.x.strides[0],
                     args.weight.as<const float>(), args.y.as<Out>(), args.y.strides[0], args.x.shape[1],
                     args.eps);
    });
  });
  return {};
}

Status HeadRmsNorm(CudaContext& context, const ops::HeadRmsNormArgs& args) {
  if (args.x.num_elements() == 0) return {};
  const int64_t num_rows = args.x.shape[0] * args.x.shape[1];
  constexpr int kWarps = 4;
  WithElement(args.x.dtype, [&]<typename T>(T*) {
    context.Launch(HeadRmsNormKernel<T>, static_cast<unsigned>(CeilDiv(num_rows, kWarps)), 32 * kWarps, 0,
                   args.x.as<const T>(), args.y.as<T>(), num_rows, args.x.shape[2], args.eps);
  });
  return {};
}

}  // namespace dsv4::backend::cuda
