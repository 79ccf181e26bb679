// Ops hc_pre and hc_head. Each row of the mixing matrix is a dot product of hc_mult * dim terms, read by a
// few blocks of its own. A second kernel turns a token's few numbers into its mix.
#include <algorithm>

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/hyper_connection/hc_dots.h"
#include "backend/cuda/kernels/hyper_connection/hc_mix.cuh"
#include "backend/cuda/kernels/hyper_connection/hyper_connection.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kDotThreads = 256;
constexpr int kMixThreads = 256;

// Four columns as they are read, and as numbers.
template <typename T>
struct Four;
template <>
struct Four<float> {
  float4 raw;
  Four() = default;
  __device__ __forceinline__ explicit Four(const float* data) : raw(*reinterpret_cast<const float4*>(data)) {}
  __device__ __forceinline__ void Widen(double (&values)[4]) const {
    values[0] = static_cast<double>(raw.x);
    values[1] = static_cast<double>(raw.y);
    values[2] = static_cast<double>(raw.z);
    values[3] = static_cast<double>(raw.w);
  }
};
template <>
struct Four<Bf16> {
  uint2 raw;
  Four() = default;
  __device__ __forceinline__ explicit Four(const Bf16* data) : raw(*reinterpret_cast<const uint2*>(data)) {}
  __device__ __forceinline__ void Widen(double (&values)[4]) const {
    values[0] = static_cast<double>(__uint_as_float(raw.x << 16));
    values[1] = static_cast<double>(__uint_as_float(raw.x & 0xFFFF0000U));
    values[2] = static_cast<double>(__uint_as_float(raw.y << 16));
    values[3] = static_cast<double>(__uint_as_float(raw.y & 0xFFFF0000U));
  }
};
template <typename T>
__device__ __forceinline__ void LoadFour(const T* data, double (&values)[4]) {
  Four<T>(data).Widen(values);
}

// dots[token][k] = fn[k] . x for k < num_rows; x . x for k = num_rows, for streams of any shape, in one part.
// Grid: tokens, rows.
template <typename T>
__global__ void __launch_bounds__(kDotThreads)
    HyperConnectionAnyDotsKernel(const T* streams, const float* fn, double* dots, int64_t width,
                                 int num_rows) {
  BeginKernel();
  const int64_t token = blockIdx.x;
  const int k = static_cast<int>(blockIdx.y);
  const T* const x = streams + token * width;
  const float* const row = fn + k * width;
  double sum = 0.0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < width; i += kDotThreads)
    sum = fma(k < num_rows ? static_cast<double>(row[i]) : Load(x, i), Load(x, i), sum);
  sum = BlockSum(sum);
  if (threadIdx.x == 0) dots[token * (num_rows + 1) + k] = sum;
}

// WarpSum of 32 sums at once: lanes exchange what the other keeps, and lane i ends with sum i, in sums[0].
template <int kOffset = 16>
__device__ __forceinline__ void SumOverLanes(double (&sums)[32]) {
  const bool upper = (threadIdx.x & kOffset) != 0;
#pragma unroll
  for (int i = 0; i < kOffset; ++i) {
    const double sent = upper ? sums[i] : sums[i + kOffset];
    const double kept = upper ? sums[i + kOffset] : sums[i];
    sums[i] = kept + __shfl_xor_sync(kWholeWarp, sent, kOffset);
  }
  if constexpr (kOffset > 1) SumOverLanes<kOffset / 2>(sums);
}

// The same in parts (HasHcRuns), which hc_cluster.cu's blocks sum too. A warp has a part: a lane has four
// columns of one stream of each of its runs. A block keeps four rows of the matrix in its first-level cache
// while tokens go by. They come eight at a time, two groups of eight beside each other. Grid: tokens by
// tokens_per_block, rows by four, parts by four.
constexpr int kRowsAtOnce = 4;
constexpr int kTokensAtOnce = 8;
constexpr int kPartsOfBlock = 4;

// A few tokens wait for the rows of the matrix run after run. They are weights: blocks of the same rows have
// them in L2 before the kernels in front have ended.
__device__ __forceinline__ void AskForMatrix(const float* fn, int first_row, int num_rows, int64_t width) {
  constexpr int kLine = 32;  // Floats.
  const float* const begin = fn + first_row * width;
  const int64_t count = min(kRowsAtOnce, num_rows - first_row) * width;
  for (int64_t i = (int64_t{blockIdx.z} * kDotThreads + threadIdx.x) * kLine; i < count;
       i += int64_t{gridDim.z} * kDotThreads * kLine)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(begin + i));
}

template <typename T>
__global__ void __launch_bounds__(kDotThreads, 1)
    HyperConnectionDotsKernel(const T* streams, const float* fn, double* dots, int dim, int num_rows,
                              int64_t num_tokens, int64_t tokens_per_block) {
  constexpr int kValues = kRowsAtOnce * kTokensAtOnce;
  static_assert(kValues == 32);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int num_parts = static_cast<int>(gridDim.z) * kPartsOfBlock;
  const int part = static_cast<int>(blockIdx.z) * kPartsOfBlock + warp % kPartsOfBlock;
  const int first_row = static_cast<int>(blockIdx.y) * kRowsAtOnce;
  const int64_t width = int64_t{4} * dim;
  LetNextKernelStart();
  if (gridDim.x == 1) AskForMatrix(fn, first_row, num_rows, width);
  WaitForKernelsBefore();
  const int step = num_parts * kHcRunColumns;
  const int64_t place = lane / 8 * dim + part * kHcRunColumns + lane % 8 * 4;
  const int64_t last_token = min(num_tokens, (blockIdx.x + int64_t{1}) * tokens_per_block);
  constexpr int kNextTokens = kDotThreads / 32 / kPartsOfBlock * kTokensAtOnce;
  // Tokens are read one step ahead.
  Four<T> next[kTokensAtOnce];
  const auto ask = [&](int64_t first, int run) {
#pragma unroll
    for (int t = 0; t < kTokensAtOnce; ++t)
      next[t] = Four<T>(streams + min(first + t, last_token - 1) * width + place + run);
  };
  int64_t first = blockIdx.x * tokens_per_block + warp / kPartsOfBlock * kTokensAtOnce;
  if (first < last_token) ask(first, 0);
  for (; first < last_token; first += kNextTokens) {
    double sums[kValues] = {};  // By token, then row.
    const auto add = [&]<bool kNorm>() {
      for (int run = 0; run < dim; run += step) {
        Four<T> now[kTokensAtOnce];
#pragma unroll
        for (int t = 0; t < kTokensAtOnce; ++t) now[t] = next[t];
        if (run + step < dim) {
          ask(first, run + step);
        } else if (first + kNextTokens < last_token) {
          ask(first + kNextTokens, 0);
        }
        double a[kRowsAtOnce][4];
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r)
          LoadFour(fn + min(first_row + r, num_rows - 1) * width + place + run, a[r]);
#pragma unroll
        for (int t = 0; t < kTokensAtOnce; ++t) {
          if (first + t >= last_token) break;
          double b[4];
          now[t].Widen(b);
#pragma unroll
          for (int r = 0; r < kRowsAtOnce; ++r) {
            const bool norm = kNorm && first_row + r == num_rows;
#pragma unroll
            for (int j = 0; j < 4; ++j)
              sums[t * kRowsAtOnce + r] = fma(norm ? b[j] : a[r][j], b[j], sums[t * kRowsAtOnce + r]);
          }
        }
      }
    };
    if (first_row + kRowsAtOnce <= num_rows) {
      add.template operator()<false>();
    } else {
      add.template operator()<true>();
    }
    SumOverLanes(sums);
    const int64_t token = first + lane / kRowsAtOnce;
    const int row = first_row + lane % kRowsAtOnce;
    if (token < last_token && row <= num_rows)
      dots[(token * (num_rows + 1) + row) * num_parts + part] = sums[0];
  }
}

// The same for more tokens. A block has a part and eight rows of the matrix, which lie in shared memory as
// doubles. Conversions take as long as products do, and those of tokens are then shared by eight rows. A warp
// takes eight tokens at a time.
// Grid: tokens by tokens_per_block, rows by eight, parts.
constexpr int kManyRowsAtOnce = 8;

constexpr size_t ManyDotsBytes(int64_t runs) {
  return static_cast<size_t>(runs * kManyRowsAtOnce * kHcRunColumns * 4) * sizeof(double);
}

template <typename T>
__global__ void __launch_bounds__(kDotThreads, 1)
    HyperConnectionManyDotsKernel(const T* streams, const float* fn, double* dots, int dim, int num_rows,
                                  int64_t num_tokens, int64_t tokens_per_block) {
  constexpr int kWarps = kDotThreads / 32;
  BeginKernel();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const auto num_parts = static_cast<int>(gridDim.z);
  const auto part = static_cast<int>(blockIdx.z);
  const int first_row = static_cast<int>(blockIdx.y) * kManyRowsAtOnce;
  const int64_t width = int64_t{4} * dim;
  const int step = num_parts * kHcRunColumns;
  const int64_t place = lane / 8 * dim + part * kHcRunColumns + lane % 8 * 4;
  // [run][row][first or second two columns][lane]
  extern __shared__ __align__(16) unsigned char raw_memory[];
  auto* const matrix = reinterpret_cast<double2*>(raw_memory);
  for (int run = 0; run * step < dim; ++run) {
    const int row = min(first_row + warp, num_rows - 1);
    static_assert(kWarps == kManyRowsAtOnce);
    double a[4];
    LoadFour(fn + row * width + place + run * step, a);
    double2* const to = matrix + (run * kManyRowsAtOnce + warp) * 64 + lane;
    to[0] = make_double2(a[0], a[1]);
    to[32] = make_double2(a[2], a[3]);
  }
  __syncthreads();

  const int64_t last_token = min(num_tokens, (blockIdx.x + int64_t{1}) * tokens_per_block);
  constexpr int kNextTokens = kWarps * kTokensAtOnce;
  // Tokens are read one step ahead.
  Four<T> next[kTokensAtOnce];
  const auto ask = [&](int64_t first, int run) {
#pragma unroll
    for (int t = 0; t < kTokensAtOnce; ++t)
      next[t] = Four<T>(streams + min(first + t, last_token - 1) * width + place + run);
  };
  const auto work = [&]<bool kNorm>() {
    int64_t first = blockIdx.x * tokens_per_block + warp * kTokensAtOnce;
    if (first < last_token) ask(first, 0);
    for (; first < last_token; first += kNextTokens) {
      double sums[kTokensAtOnce][kManyRowsAtOnce] = {};
      [[maybe_unused]] double squares[kTokensAtOnce] = {};
      const double2* a = matrix + lane;
      for (int run = 0; run < dim; run += step) {
        double b[kTokensAtOnce][4];
#pragma unroll
        for (int t = 0; t < kTokensAtOnce; ++t) next[t].Widen(b[t]);
        if (run + step < dim) {
          ask(first, run + step);
        } else if (first + kNextTokens < last_token) {
          ask(first + kNextTokens, 0);
        }
        if constexpr (kNorm) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int t = 0; t < kTokensAtOnce; ++t) squares[t] = fma(b[t][j], b[t][j], squares[t]);
          }
        }
#pragma unroll
        for (int r = 0; r < kManyRowsAtOnce; ++r) {
          const double2 low = a[0];
          const double2 high = a[32];
          a += 64;
          const double row[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
          for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int t = 0; t < kTokensAtOnce; ++t) sums[t][r] = fma(row[j], b[t][j], sums[t][r]);
          }
        }
      }
      double* const to = dots + first * (num_rows + 1) * num_parts + part;
      const auto store = [&](int t, int row, double sum) {
        if (first + t < last_token && row <= num_rows)
          to[(int64_t{t} * (num_rows + 1) + row) * num_parts] = sum;
      };
      // WarpSum of 32 at once: lanes exchange what the other keeps, and lane i ends with sum i.
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        double values[32];
#pragma unroll
        for (int i = 0; i < 32; ++i) values[i] = sums[half * 4 + i / kManyRowsAtOnce][i % kManyRowsAtOnce];
        SumOverLanes(values);
        const int row = first_row + lane % kManyRowsAtOnce;
        if (row < num_rows) store(half * 4 + lane / kManyRowsAtOnce, row, values[0]);
      }
      if constexpr (kNorm) {
#pragma unroll
        for (int t = 0; t < kTokensAtOnce; ++t) {
          const double sum = WarpSum(squares[t]);
          if (lane == t) store(t, num_rows, sum);
        }
      }
    }
  };
  if (first_row == 0) {
    work.template operator()<true>();
  } else {
    work.template operator()<false>();
  }
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

// Columns of u a block.
constexpr int64_t kMixColumns = 1024;

// Grid: tokens, and in y first the small outputs, whose iterations take longest, then pieces of u.
template <typename T>
__global__ void __launch_bounds__(kMixThreads)
    HyperConnectionPreKernel(const T* streams, T* u, const HcPreParams p) {
  __shared__ double pre[ops::kMaxHcMult];
  BeginKernel();
  const int64_t token = blockIdx.x;
  const int mult = p.mult;
  const int t = static_cast<int>(threadIdx.x);
  if (blockIdx.y > 0) {
    if (t < mult) {
      const double own = Sigmoid(HcLogit(p, token, t, 0)) + static_cast<double>(p.hc_eps);
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
    HyperConnectionHeadKernel(const T* streams, const double* all_dots, int num_parts, const float* scale,
                              const float* base, const float* given, T* y, int mult, int64_t dim,
                              float norm_eps, float hc_eps) {
  __shared__ double pre[ops::kMaxHcMult];
  BeginKernel();
  const int64_t token = blockIdx.x;
  const int t = static_cast<int>(threadIdx.x);
  if (t < mult && given != nullptr) {
    pre[t] = static_cast<double>(given[token * mult + t]);
  } else if (t < mult) {
    const double* const dots = all_dots + token * (mult + 1) * num_parts;
    const double factor = NormFactor(SumOfParts(dots + mult * num_parts, num_parts), mult * dim, norm_eps);
    pre[t] = Sigmoid(HcLogit(factor, SumOfParts(dots + t * num_parts, num_parts), scale[0], base[t])) +
             static_cast<double>(hc_eps);
  }
  __syncthreads();
  const int64_t begin = blockIdx.y * kMixColumns;
  MixStreams(pre, streams + token * mult * dim, y + token * dim, mult, dim, begin,
             min(dim, begin + kMixColumns));
}

}  // namespace

void LaunchHcDots(LaunchContext& context, HcDotsPath kernel, const TensorView& streams, const TensorView& fn,
                  const HcDots& to) {
  double* const dots = to.data;
  if (kernel == HcDotsPath::kMma) return LaunchHcDotsMma(context, streams, fn, dots);
  const int64_t num_tokens = streams.shape[0];
  const int64_t num_rows = fn.shape[0];
  const int64_t dim = streams.shape[2];
  const int64_t num_parts = to.num_parts;
  WithElement(streams.dtype, [&]<typename T>(T*) {
    const int64_t runs = dim / (num_parts * kHcRunColumns);
    if (kernel == HcDotsPath::kManyTokens) {
      // As many blocks as there are SMs, or that many again.
      const int64_t others = CeilDiv(num_rows, kManyRowsAtOnce) * num_parts;
      const int64_t wanted = std::max<int64_t>(1, 4 * context.limits().num_sms / others);
      constexpr int64_t kTogether = kDotThreads / 32 * kTokensAtOnce;
      const int64_t tokens_per_block = CeilDiv(CeilDiv(num_tokens, wanted), kTogether) * kTogether;
      const dim3 blocks(static_cast<unsigned>(CeilDiv(num_tokens, tokens_per_block)),
                        static_cast<unsigned>(CeilDiv(num_rows, kManyRowsAtOnce)),
                        static_cast<unsigned>(num_parts));
      context.Launch(HyperConnectionManyDotsKernel<T>, blocks, kDotThreads, ManyDotsBytes(runs),
                     streams.as<const T>(), fn.as<const float>(), dots, static_cast<int>(dim),
                     static_cast<int>(num_rows), num_tokens, tokens_per_block);
      return;
    }
    if (kernel != HcDotsPath::kAny) {
      // Spread over the device.
      constexpr int64_t tokens_per_block = int64_t{2} * kTokensAtOnce;
      const dim3 blocks(static_cast<unsigned>(CeilDiv(num_tokens, tokens_per_block)),
                        static_cast<unsigned>(CeilDiv(num_rows + 1, kRowsAtOnce)),
                        static_cast<unsigned>(num_parts / kPartsOfBlock));
      context.Launch(HyperConnectionDotsKernel<T>, blocks, kDotThreads, 0, streams.as<const T>(),
                     fn.as<const float>(), dots, static_cast<int>(dim), static_cast<int>(num_rows),
                     num_tokens, tokens_per_block);
      return;
    }
    const dim3 grid(static_cast<unsigned>(num_tokens), static_cast<unsigned>(num_rows + 1));
    context.Launch(HyperConnectionAnyDotsKernel<T>, grid, kDotThreads, 0, streams.as<const T>(),
                   fn.as<const float>(), dots, fn.shape[1], static_cast<int>(num_rows));
  });
}

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
                   static_cast<const double*>(dots.data), dots.num_parts, args.scale.as<const float>(),
                   args.base.as<const float>(), args.given.as<const float>(), args.y.as<T>(),
                   static_cast<int>(args.streams.shape[1]), args.streams.shape[2], args.norm_eps,
                   args.hc_eps);
  });
}

}  // namespace dsv4::backend::cuda
