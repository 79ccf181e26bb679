// hc_pre, hc_post and hc_head. Each row of the mixing matrix is a dot product of hc_mult * dim terms, read by a few blocks of
// its own; a second kernel turns a token's few numbers into its mix.
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/device_numbers.cuh"
#include "backend/cuda/kernels/reduce.cuh"

namespace dsv4::backend::cuda {
namespace {

constexpr int kDotThreads = 256;
constexpr int kMixThreads = 256;

__device__ double Sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

// A dot product is cut into so many parts, each a block's, whose sums are added in order.
constexpr int kParts = 4;

template <typename T>
__device__ __forceinline__ void LoadFour(const T* data, double (&values)[4]);
template <>
__device__ __forceinline__ void LoadFour<float>(const float* data, double (&values)[4]) {
  const float4 four = *reinterpret_cast<const float4*>(data);
  values[0] = static_cast<double>(four.x);
  values[1] = static_cast<double>(four.y);
  values[2] = static_cast<double>(four.z);
  values[3] = static_cast<double>(four.w);
}
template <>
__device__ __forceinline__ void LoadFour<Bf16>(const Bf16* data, double (&values)[4]) {
  const uint2 four = *reinterpret_cast<const uint2*>(data);
  values[0] = static_cast<double>(__uint_as_float(four.x << 16));
  values[1] = static_cast<double>(__uint_as_float(four.x & 0xFFFF0000U));
  values[2] = static_cast<double>(__uint_as_float(four.y << 16));
  values[3] = static_cast<double>(__uint_as_float(four.y & 0xFFFF0000U));
}

// Parts of dots[token][k] = fn[k] . x for k < num_rows; of x . x for k = num_rows. Grid: tokens, rows, parts.
template <typename T>
__global__ void __launch_bounds__(kDotThreads)
    MixDotsKernel(const T* streams, const float* fn, double* dots, int64_t width, int num_rows) {
  BeginKernel();
  const int64_t token = blockIdx.x;
  const int k = static_cast<int>(blockIdx.y);
  const T* const x = streams + token * width;
  const float* const row = fn + k * width;
  // Parts of whole groups of four columns, where four can be read at once.
  const bool fours =
      width % 4 == 0 && (reinterpret_cast<uintptr_t>(streams) | reinterpret_cast<uintptr_t>(fn)) % 16 == 0;
  const int64_t step = fours ? 4 : 1;
  const int64_t part_width = CeilDiv(width / step, kParts) * step;
  const int64_t begin = blockIdx.z * part_width;
  const int64_t end = min(width, begin + part_width);
  double sum = 0.0;
  if (fours) {
#pragma unroll 4
    for (int64_t i = begin + 4 * threadIdx.x; i < end; i += 4 * kDotThreads) {
      double a[4];
      double b[4];
      LoadFour(x + i, b);
      if (k < num_rows) {
        LoadFour(row + i, a);
      } else {
        LoadFour(x + i, a);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) sum = fma(a[j], b[j], sum);
    }
  } else {
    for (int64_t i = begin + threadIdx.x; i < end; i += kDotThreads)
      sum = fma(k < num_rows ? static_cast<double>(row[i]) : Load(x, i), Load(x, i), sum);
  }
  sum = BlockSum(sum);
  if (threadIdx.x == 0) dots[(token * (num_rows + 1) + k) * kParts + blockIdx.z] = sum;
}

// The same for many tokens, in the same order: a block keeps four rows of the matrix in its first-level cache while tokens go by,
// eight at a time. Grid: tokens by kTokensPerBlock, rows by four, parts. For rows that are read in fours.
constexpr int kRowsAtOnce = 4;
constexpr int kTokensAtOnce = 8;
constexpr int kTokensPerBlock = 64;

template <typename T>
__global__ void __launch_bounds__(kDotThreads, 1)
    MixDotsManyKernel(const T* streams, const float* fn, double* dots, int64_t width, int num_rows,
                      int64_t num_tokens) {
  constexpr int kValues = kRowsAtOnce * kTokensAtOnce;
  constexpr int kWarps = kDotThreads / 32;
  static_assert(kValues == 32);
  __shared__ double partial[2][kWarps][kValues];
  BeginKernel();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int first_row = static_cast<int>(blockIdx.y) * kRowsAtOnce;
  const int64_t part_width = CeilDiv(width / 4, kParts) * 4;
  const int64_t begin = blockIdx.z * part_width;
  const int64_t end = min(width, begin + part_width);
  const int64_t last_token = min(num_tokens, (blockIdx.x + int64_t{1}) * kTokensPerBlock);
  int buffer = 0;
  for (int64_t first = blockIdx.x * int64_t{kTokensPerBlock}; first < last_token; first += kTokensAtOnce) {
    double sums[kValues] = {};  // By token, then row.
    for (int64_t i = begin + 4 * thread; i < end; i += 4 * kDotThreads) {
      double a[kRowsAtOnce][4];
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) LoadFour(fn + min(first_row + r, num_rows - 1) * width + i, a[r]);
#pragma unroll
      for (int t = 0; t < kTokensAtOnce; ++t) {
        double b[4];
        LoadFour(streams + min(first + t, last_token - 1) * width + i, b);
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          const bool norm = first_row + r == num_rows;
#pragma unroll
          for (int j = 0; j < 4; ++j)
            sums[t * kRowsAtOnce + r] = fma(norm ? b[j] : a[r][j], b[j], sums[t * kRowsAtOnce + r]);
        }
      }
    }
    // WarpSum of all of them at once: lanes exchange what the other keeps, and lane i ends with sum i.
    const auto exchange = [&]<int kOffset>() {
      const bool upper = (lane & kOffset) != 0;
#pragma unroll
      for (int i = 0; i < kOffset; ++i) {
        const double sent = upper ? sums[i] : sums[i + kOffset];
        const double kept = upper ? sums[i + kOffset] : sums[i];
        sums[i] = kept + __shfl_xor_sync(kWholeWarp, sent, kOffset);
      }
    };
    exchange.template operator()<16>();
    exchange.template operator()<8>();
    exchange.template operator()<4>();
    exchange.template operator()<2>();
    exchange.template operator()<1>();
    partial[buffer][thread / 32][lane] = sums[0];
    __syncthreads();
    if (thread < kValues) {
      double total = partial[buffer][0][lane];
      for (int warp = 1; warp < kWarps; ++warp) total += partial[buffer][warp][lane];
      const int64_t token = first + lane / kRowsAtOnce;
      const int row = first_row + lane % kRowsAtOnce;
      if (token < last_token && row <= num_rows)
        dots[(token * (num_rows + 1) + row) * kParts + blockIdx.z] = total;
    }
    buffer ^= 1;
  }
}

__device__ double Dot(const double* dots, int k) {
  double sum = dots[k * kParts];
#pragma unroll
  for (int part = 1; part < kParts; ++part) sum += dots[k * kParts + part];
  return sum;
}

// The norm is a factor taken over all streams at once.
__device__ double NormFactor(const double* dots, int num_rows, int64_t width, float norm_eps) {
  return 1.0 / sqrt(Dot(dots, num_rows) / static_cast<double>(width) + static_cast<double>(norm_eps));
}

// u[d] = sum_i pre[i] * stream i, over this block's share of the columns.
template <typename T>
__device__ void MixStreams(const double* pre, const T* x, T* u, int mult, int64_t dim, int64_t begin,
                           int64_t end) {
  for (int64_t d = begin + threadIdx.x; d < end; d += kMixThreads) {
    double sum = 0.0;
#pragma unroll 4
    for (int i = 0; i < mult; ++i) sum += pre[i] * Load(x, i * dim + d);
    Store(u, d, sum);
  }
}

// 1 / x for x of ordinary size, to 2^-44: a single-precision reciprocal, improved once.
__device__ __forceinline__ double Reciprocal(double x) {
  float guess = 0.0F;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(guess) : "f"(static_cast<float>(x)));
  const double r = static_cast<double>(guess);
  return fma(fma(-x, r, 1.0), r, r);
}

// The release's four streams: one thread holds the matrix, whose sums and quotients are independent of each other.
__device__ void SinkhornOfFour(double* comb, double eps, int iterations) {
  double c[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    double max = comb[4 * i];
#pragma unroll
    for (int j = 1; j < 4; ++j) max = max < comb[4 * i + j] ? comb[4 * i + j] : max;
    double sum = 0.0;
#pragma unroll
    for (int j = 0; j < 4; ++j) sum += c[i][j] = exp(comb[4 * i + j] - max);
#pragma unroll
    for (int j = 0; j < 4; ++j) c[i][j] = c[i][j] / sum + eps;
  }
  const auto columns = [&] {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const double factor = Reciprocal((c[0][j] + c[1][j]) + (c[2][j] + c[3][j]) + eps);
#pragma unroll
      for (int i = 0; i < 4; ++i) c[i][j] *= factor;
    }
  };
  columns();
  for (int iteration = 1; iteration < iterations; ++iteration) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const double factor = Reciprocal((c[i][0] + c[i][1]) + (c[i][2] + c[i][3]) + eps);
#pragma unroll
      for (int j = 0; j < 4; ++j) c[i][j] *= factor;
    }
    columns();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) comb[4 * i + j] = c[i][j];
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

// Columns of u a block.
constexpr int64_t kMixColumns = 1024;

// Grid: tokens, and in y first the small outputs, whose iterations take longest, then pieces of u.
template <typename T>
__global__ void __launch_bounds__(kMixThreads) HcPreKernel(const T* streams, T* u, const HcPreParams p) {
  __shared__ double pre[ops::kMaxHcMult];
  __shared__ double comb[ops::kMaxHcMult * ops::kMaxHcMult];
  BeginKernel();
  const int64_t token = blockIdx.x;
  const int mult = p.mult;
  const int num_rows = (2 + mult) * mult;
  const double* const dots = p.dots + token * (num_rows + 1) * kParts;
  const double hc_eps = static_cast<double>(p.hc_eps);
  const auto logit = [&](int k, int part) {
    const double factor = NormFactor(dots, num_rows, mult * p.dim, p.norm_eps);
    return factor * Dot(dots, k) * static_cast<double>(p.scale[part]) + static_cast<double>(p.base[k]);
  };
  const int t = static_cast<int>(threadIdx.x);
  if (blockIdx.y > 0) {
    if (t < mult) pre[t] = Sigmoid(logit(t, 0)) + hc_eps;
    __syncthreads();
    const int64_t begin = (blockIdx.y - 1) * kMixColumns;
    MixStreams(pre, streams + token * mult * p.dim, u + token * p.dim, mult, p.dim, begin,
               min(p.dim, begin + kMixColumns));
    return;
  }
  if (t < mult * mult) comb[t] = logit(2 * mult + t, 2);
  // Not in the warp of the iterations.
  if (t >= kMixThreads - 32 && t < kMixThreads - 32 + mult) {
    const int i = t - (kMixThreads - 32);
    Store(p.post, token * mult + i, 2.0 * Sigmoid(logit(mult + i, 1)));
  }
  __syncthreads();
  if (mult == 4) {
    if (t == 0) SinkhornOfFour(comb, hc_eps, p.sinkhorn_iters);
    __syncwarp();
  } else {
    Sinkhorn(comb, mult, hc_eps, p.sinkhorn_iters);
  }
  if (mult == 4 ? t < 16 : t < mult * mult) Store(p.comb, token * mult * mult + t, comb[t]);
}

// Grid: tokens, pieces of y.
template <typename T>
__global__ void __launch_bounds__(kMixThreads)
    HcHeadKernel(const T* streams, const double* all_dots, const float* scale, const float* base, T* y,
                 int mult, int64_t dim, float norm_eps, float hc_eps) {
  __shared__ double pre[ops::kMaxHcMult];
  BeginKernel();
  const int64_t token = blockIdx.x;
  const double* const dots = all_dots + token * (mult + 1) * kParts;
  const int t = static_cast<int>(threadIdx.x);
  if (t < mult) {
    const double factor = NormFactor(dots, mult, mult * dim, norm_eps);
    pre[t] = Sigmoid(factor * Dot(dots, t) * static_cast<double>(scale[0]) + static_cast<double>(base[t])) +
             static_cast<double>(hc_eps);
  }
  __syncthreads();
  const int64_t begin = blockIdx.y * kMixColumns;
  MixStreams(pre, streams + token * mult * dim, y + token * dim, mult, dim, begin,
             min(dim, begin + kMixColumns));
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

// The same for the release's four streams, eight columns a thread. Grid: tokens, pieces of y.
constexpr int kPostColumns = 8;
constexpr int kPostThreads = 128;

__device__ __forceinline__ void LoadEight(const float* data, float (&values)[8]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float4 four = *reinterpret_cast<const float4*>(data + 4 * half);
    values[4 * half] = four.x;
    values[4 * half + 1] = four.y;
    values[4 * half + 2] = four.z;
    values[4 * half + 3] = four.w;
  }
}
__device__ __forceinline__ void LoadEight(const Bf16* data, float (&values)[8]) {
  const uint4 eight = *reinterpret_cast<const uint4*>(data);
  const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(words[i] << 16);
    values[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
  }
}
__device__ __forceinline__ void StoreEight(float* data, const float (&values)[8]) {
  *reinterpret_cast<float4*>(data) = make_float4(values[0], values[1], values[2], values[3]);
  *reinterpret_cast<float4*>(data + 4) = make_float4(values[4], values[5], values[6], values[7]);
}
__device__ __forceinline__ void StoreEight(Bf16* data, const float (&values)[8]) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    words[i] = Bf16FromFloat(values[2 * i]) | static_cast<uint32_t>(Bf16FromFloat(values[2 * i + 1])) << 16;
  *reinterpret_cast<uint4*>(data) = make_uint4(words[0], words[1], words[2], words[3]);
}

template <typename T>
__global__ void __launch_bounds__(kPostThreads)
    HcPostOfFourKernel(const T* y, const T* residual, const float* post, const float* comb, T* out,
                       int64_t dim) {
  BeginKernel();
  const int64_t token = blockIdx.x;
  const int64_t d = (blockIdx.y * int64_t{kPostThreads} + threadIdx.x) * kPostColumns;
  if (d >= dim) return;
  float values[kPostColumns];
  float streams[4][kPostColumns];
  LoadEight(y + token * dim + d, values);
#pragma unroll
  for (int i = 0; i < 4; ++i) LoadEight(residual + (token * 4 + i) * dim + d, streams[i]);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const double factor = static_cast<double>(post[token * 4 + j]);
    double factors[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) factors[i] = static_cast<double>(comb[(token * 4 + i) * 4 + j]);
    float sums[kPostColumns];
#pragma unroll
    for (int k = 0; k < kPostColumns; ++k) {
      double sum = factor * static_cast<double>(values[k]);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum += factors[i] * static_cast<double>(streams[i][k]);
      sums[k] = static_cast<float>(sum);
    }
    StoreEight(out + (token * 4 + j) * dim + d, sums);
  }
}

// Scratch of [num_tokens, num_rows + 1, kParts] partial dot products.
Result<const double*> MixDots(CudaContext& context, const TensorView& streams, const TensorView& fn) {
  const int64_t num_tokens = streams.shape[0];
  const int64_t num_rows = fn.shape[0];
  DSV4_ASSIGN_OR_RETURN(double* const dots, context.Scratch<double>(num_tokens * (num_rows + 1) * kParts));
  const dim3 grid(static_cast<unsigned>(num_tokens), static_cast<unsigned>(num_rows + 1), kParts);
  constexpr int64_t kMany = 64;
  const bool many =
      num_tokens >= kMany && fn.shape[1] % 4 == 0 &&
      (reinterpret_cast<uintptr_t>(streams.data) | reinterpret_cast<uintptr_t>(fn.data)) % 16 == 0;
  WithElement(streams.dtype, [&]<typename T>(T*) {
    if (many) {
      const dim3 blocks(static_cast<unsigned>(CeilDiv(num_tokens, kTokensPerBlock)),
                        static_cast<unsigned>(CeilDiv(num_rows + 1, kRowsAtOnce)), kParts);
      context.Launch(MixDotsManyKernel<T>, blocks, kDotThreads, 0, streams.as<const T>(),
                     fn.as<const float>(), dots, fn.shape[1], static_cast<int>(num_rows), num_tokens);
      return;
    }
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
  const dim3 grid(num_tokens, static_cast<unsigned>(1 + CeilDiv(params.dim, kMixColumns)));
  WithElement(args.streams.dtype, [&]<typename T>(T*) {
    context.Launch(HcPreKernel<T>, grid, kMixThreads, 0, args.streams.as<const T>(), args.u.as<T>(), params);
  });
  return {};
}

Status HcPost(CudaContext& context, const ops::HcPostArgs& args) {
  if (args.residual.num_elements() == 0) return {};
  const int64_t dim = args.residual.shape[2];
  constexpr int kThreads = 128;
  const dim3 grid(static_cast<unsigned>(args.residual.shape[0]),
                  static_cast<unsigned>(CeilDiv(dim, kThreads)));
  const bool eights = args.residual.shape[1] == 4 && dim % kPostColumns == 0 &&
                      (reinterpret_cast<uintptr_t>(args.y.data) | reinterpret_cast<uintptr_t>(args.out.data) |
                       reinterpret_cast<uintptr_t>(args.residual.data)) %
                              16 ==
                          0;
  WithElement(args.residual.dtype, [&]<typename T>(T*) {
    if (eights) {
      const dim3 blocks(grid.x, static_cast<unsigned>(CeilDiv(dim, kPostThreads * kPostColumns)));
      context.Launch(HcPostOfFourKernel<T>, blocks, kPostThreads, 0, args.y.as<const T>(),
                     args.residual.as<const T>(), args.post.as<const float>(), args.comb.as<const float>(),
                     args.out.as<T>(), dim);
      return;
    }
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
  const dim3 grid(num_tokens, static_cast<unsigned>(CeilDiv(args.streams.shape[2], kMixColumns)));
  WithElement(args.streams.dtype, [&]<typename T>(T*) {
    context.Launch(HcHeadKernel<T>, grid, kMixThreads, 0, args.streams.as<const T>(), dots,
                   args.scale.as<const float>(), args.base.as<const float>(), args.y.as<T>(),
                   static_cast<int>(args.streams.shape[1]), args.streams.shape[2], args.norm_eps,
                   args.hc_eps);
  });
  return {};
}

}  // namespace dsv4::backend::cuda
