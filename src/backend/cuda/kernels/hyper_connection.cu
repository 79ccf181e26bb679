// hc_pre, hc_post and hc_head. Each row of the mixing matrix is a dot product of hc_mult * dim terms, read by a block of its
// own; a second kernel turns a token's few numbers into its mix.
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/device_numbers.cuh"
#include "backend/cuda/kernels/reduce.cuh"

namespace dsv4::backend::cuda {
namespace {

constexpr int kDotThreads = 256;
constexpr int kMixThreads = 256;

__device__ double Sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

// dots[token][k] = fn[k] . x for k < num_rows; dots[token][num_rows] = x . x.
template <typename T>
__global__ void MixDotsKernel(const T* streams, const float* fn, double* dots, int64_t width, int num_rows) {
  BeginKernel();
  const int64_t token = blockIdx.x;
  const int k = static_cast<int>(blockIdx.y);
  const T* const x = streams + token * width;
  double sum = 0.0;
  if (k < num_rows) {
    const float* const row = fn + k * width;
    for (int64_t i = threadIdx.x; i < width; i += kDotThreads)
      sum = fma(static_cast<double>(row[i]), Load(x, i), sum);
  } else {
    for (int64_t i = threadIdx.x; i < width; i += kDotThreads) sum = fma(Load(x, i), Load(x, i), sum);
  }
  sum = BlockSum(sum);
  if (threadIdx.x == 0) dots[token * (num_rows + 1) + k] = sum;
}

// The norm is a factor taken over all streams at once.
__device__ double NormFactor(const double* dots, int num_rows, int64_t width, float norm_eps) {
  return 1.0 / sqrt(dots[num_rows] / static_cast<double>(width) + static_cast<double>(norm_eps));
}

// u[d] = sum_i pre[i] * stream i, over this block's share of the columns.
template <typename T>
__device__ void MixStreams(const double* pre, const T* x, T* u, int mult, int64_t dim) {
  for (int64_t d = threadIdx.x; d < dim; d += kMixThreads) {
    double sum = 0.0;
    for (int i = 0; i < mult; ++i) sum += pre[i] * Load(x, i * dim + d);
    Store(u, d, sum);
  }
}

// Row-softmax plus eps, then alternating normalisation, columns first; `iterations` counts that first pair. One thread an
// element; sums in the reference's order.
__device__ void Sinkhorn(double* comb, int size, double eps, int iterations) {
  const int i = static_cast<int>(threadIdx.x) / size;
  const int j = static_cast<int>(threadIdx.x) % size;
  const bool mine = i < size;
  double value = 0.0;
  const auto publish = [&](double next) {
    __syncthreads();
    if (mine) comb[i * size + j] = next;
    __syncthreads();
  };
  const auto row_sum = [&] {
    double sum = 0.0;
    for (int k = 0; k < size; ++k) sum += comb[i * size + k];
    return sum;
  };
  const auto column_sum = [&] {
    double sum = 0.0;
    for (int k = 0; k < size; ++k) sum += comb[k * size + j];
    return sum;
  };
  if (mine) {
    double max = comb[i * size];
    for (int k = 1; k < size; ++k) max = max < comb[i * size + k] ? comb[i * size + k] : max;
    value = exp(comb[i * size + j] - max);
  }
  publish(value);
  if (mine) value = value / row_sum() + eps;
  publish(value);
  if (mine) value /= column_sum() + eps;
  publish(value);
  for (int iteration = 1; iteration < iterations; ++iteration) {
    if (mine) value /= row_sum() + eps;
    publish(value);
    if (mine) value /= column_sum() + eps;
    publish(value);
  }
}

struct HcPreParams {
  const double* dots;
  const float* scale;
  const float* base;
  float* post;
  float* comb;
  int mult;
  int64_t dim;
  float norm_eps;
  float hc_eps;
  int sinkhorn_iters;
};

// One block a token.
template <typename T>
__global__ void HcPreKernel(const T* streams, T* u, const HcPreParams p) {
  BeginKernel();
  __shared__ double pre[ops::kMaxHcMult];
  __shared__ double comb[ops::kMaxHcMult * ops::kMaxHcMult];
  const int64_t token = blockIdx.x;
  const int mult = p.mult;
  const int num_rows = (2 + mult) * mult;
  const double* const dots = p.dots + token * (num_rows + 1);
  const double factor = NormFactor(dots, num_rows, mult * p.dim, p.norm_eps);
  const double hc_eps = static_cast<double>(p.hc_eps);
  const auto logit = [&](int k, int part) {
    return factor * dots[k] * static_cast<double>(p.scale[part]) + static_cast<double>(p.base[k]);
  };
  const int t = static_cast<int>(threadIdx.x);
  if (t < mult) {
    pre[t] = Sigmoid(logit(t, 0)) + hc_eps;
    Store(p.post, token * mult + t, 2.0 * Sigmoid(logit(mult + t, 1)));
  }
  if (t < mult * mult) comb[t] = logit(2 * mult + t, 2);
  __syncthreads();
  MixStreams(pre, streams + token * mult * p.dim, u + token * p.dim, mult, p.dim);
  Sinkhorn(comb, mult, hc_eps, p.sinkhorn_iters);
  if (t < mult * mult) Store(p.comb, token * mult * mult + t, comb[t]);
}

template <typename T>
__global__ void HcHeadKernel(const T* streams, const double* all_dots, const float* scale, const float* base,
                             T* y, int mult, int64_t dim, float norm_eps, float hc_eps) {
  BeginKernel();
  __shared__ double pre[ops::kMaxHcMult];
  const int64_t token = blockIdx.x;
  const double* const dots = all_dots + token * (mult + 1);
  const int t = static_cast<int>(threadIdx.x);
  if (t < mult) {
    const double factor = NormFactor(dots, mult, mult * dim, norm_eps);
    pre[t] = Sigmoid(factor * dots[t] * static_cast<double>(scale[0]) + static_cast<double>(base[t])) +
             static_cast<double>(hc_eps);
  }
  __syncthreads();
  MixStreams(pre, streams + token * mult * dim, y + token * dim, mult, dim);
}

// One thread a column of a token: it reads all streams there before it writes them, so residual and out may be the same.
template <typename T>
__global__ void HcPostKernel(const T* y, const T* residual, const float* post, const float* comb, T* out,
                             int mult, int64_t dim) {
  BeginKernel();
  const int64_t token = blockIdx.x;
  const int64_t d = blockIdx.y * int64_t{blockDim.x} + threadIdx.x;
  if (d >= dim) return;
  const T* const in = residual + token * mult * dim + d;
  double streams[ops::kMaxHcMult];
#pragma unroll
  for (int i = 0; i < ops::kMaxHcMult; ++i) {
    if (i < mult) streams[i] = Load(in, i * dim);
  }
  const double value = Load(y, token * dim + d);
  for (int j = 0; j < mult; ++j) {
    double sum = static_cast<double>(post[token * mult + j]) * value;
#pragma unroll
    for (int i = 0; i < ops::kMaxHcMult; ++i) {
      if (i < mult) sum += static_cast<double>(comb[(token * mult + i) * mult + j]) * streams[i];
    }
    Store(out, (token * mult + j) * dim + d, sum);
  }
}

// Scratch of [num_tokens, num_rows + 1] dot products.
Result<const double*> MixDots(CudaContext& context, const TensorView& streams, const TensorView& fn) {
  const int64_t num_tokens = streams.shape[0];
  const int64_t num_rows = fn.shape[0];
  DSV4_ASSIGN_OR_RETURN(double* const dots, context.Scratch<double>(num_tokens * (num_rows + 1)));
  const dim3 grid(static_cast<unsigned>(num_tokens), static_cast<unsigned>(num_rows + 1));
  WithElement(streams.dtype, [&]<typename T>(T*) {
    context.Launch(MixDotsKernel<T>, grid, kDotThreads, 0, streams.as<const T>(), fn.as<const float>(), dots,
                   fn.shape[1], static_cast<int>(num_rows));
  });
  return static_cast<const double*>(dots);
}

}  // namespace

Status HcPre(CudaContext& context, const ops::HcPreArgs& args) {
  const auto num_tokens = static_cast<unsigned>(args.streams.shape[0]);
  if (args.streams.num_elements() == 0) return {};
  DSV4_ASSIGN_OR_RETURN_STATUS(const double* const dots, MixDots(context, args.streams, args.fn));
  const HcPreParams params = {.dots = dots,
                              .scale = args.scale.as<const float>(),
                              .base = args.base.as<const float>(),
                              .post = args.post.as<float>(),
                              .comb = args.comb.as<float>(),
                              .mult = static_cast<int>(args.streams.shape[1]),
                              .dim = args.streams.shape[2],
                              .norm_eps = args.norm_eps,
                              .hc_eps = args.hc_eps,
                              .sinkhorn_iters = args.sinkhorn_iters};
  static_assert(kMixThreads >= ops::kMaxHcMult * ops::kMaxHcMult);
  WithElement(args.streams.dtype, [&]<typename T>(T*) {
    context.Launch(HcPreKernel<T>, num_tokens, kMixThreads, 0, args.streams.as<const T>(), args.u.as<T>(),
                   params);
  });
  return {};
}

Status HcPost(CudaContext& context, const ops::HcPostArgs& args) {
  if (args.residual.num_elements() == 0) return {};
  const int64_t dim = args.residual.shape[2];
  constexpr int kThreads = 128;
  const dim3 grid(static_cast<unsigned>(args.residual.shape[0]),
                  static_cast<unsigned>(CeilDiv(dim, kThreads)));
  WithElement(args.residual.dtype, [&]<typename T>(T*) {
    context.Launch(HcPostKernel<T>, grid, kThreads, 0, args.y.as<const T>(), args.residual.as<const T>(),
                   args.post.as<const float>(), args.comb.as<const float>(), args.out.as<T>(),
                   static_cast<int>(args.residual.shape[1]), dim);
  });
  return {};
}

Status HcHead(CudaContext& context, const ops::HcHeadArgs& args) {
  const auto num_tokens = static_cast<unsigned>(args.streams.shape[0]);
  if (args.streams.num_elements() == 0) return {};
  DSV4_ASSIGN_OR_RETURN_STATUS(const double* const dots, MixDots(context, args.streams, args.fn));
  WithElement(args.streams.dtype, [&]<typename T>(T*) {
    context.Launch(HcHeadKernel<T>, num_tokens, kMixThreads, 0, args.streams.as<const T>(), dots,
                   args.scale.as<const float>(), args.base.as<const float>(), args.y.as<T>(),
                   static_cast<int>(args.streams.shape[1]), args.streams.shape[2], args.norm_eps,
                   args.hc_eps);
  });
  return {};
}

}  // namespace dsv4::backend::cuda
