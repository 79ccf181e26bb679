// Dot products of tokens' streams with the rows of the mixing matrix and with themselves. Kernels for few
// tokens, for many, and for streams of any shape.
#include <algorithm>

#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/hyper_connection/hc_dots.h"
#include "backend/cuda/kernels/hyper_connection/hc_part.cuh"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTokensAtOnce = 8;  // A warp's.

// dots[token][k] = fn[k] . x for k < num_rows; x . x for k = num_rows, for streams of any shape, in one part.
// Grid: tokens, rows.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    HcDotsAnyKernel(const T* streams, const float* fn, float* dots, int64_t width, int num_rows) {
  BeginKernel();
  const int64_t token = blockIdx.x;
  const int k = static_cast<int>(blockIdx.y);
  const T* const x = streams + token * width;
  const float* const row = fn + k * width;
  float sum = 0.0F;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < width; i += kThreads)
    sum = fmaf(k < num_rows ? row[i] : ToFloat(x[i]), ToFloat(x[i]), sum);
  sum = BlockSum(sum);
  if (threadIdx.x == 0) dots[token * (num_rows + 1) + k] = sum;
}

struct Params {
  const float* fn;
  float* dots;
  int dim;
  int num_rows;
  int64_t num_tokens;
  int64_t tokens_per_block;
};

// A warp's tokens, eight at a time, read the next run early.
template <typename T>
class Tokens {
 public:
  __device__ __forceinline__ Tokens(const Params& p, const T* streams, int64_t place, int step,
                                    int64_t tokens_apart)
      : from_(streams + place),
        width_(int64_t{kHcMult} * p.dim),
        dim_(p.dim),
        step_(step),
        end_(min(p.num_tokens, (blockIdx.x + int64_t{1}) * p.tokens_per_block)),
        tokens_apart_(tokens_apart) {}
  __device__ __forceinline__ int64_t end() const { return end_; }
  __device__ __forceinline__ void Ask(int64_t first, int run) {
    if (first >= end_) return;
#pragma unroll
    for (int t = 0; t < kTokensAtOnce; ++t)
      next_[t] = LaneColumns<T>(from_ + min(first + t, end_ - 1) * width_ + run);
  }
  // Tokens `first` and on at this run, and what comes behind it is asked for.
  __device__ __forceinline__ void Take(int64_t first, int run, float (&values)[kTokensAtOnce][kLaneColumns]) {
#pragma unroll
    for (int t = 0; t < kTokensAtOnce; ++t) next_[t].Widen(values[t]);
    if (run + step_ < dim_) {
      Ask(first, run + step_);
    } else {
      Ask(first + tokens_apart_, 0);
    }
  }

 private:
  const T* const from_;
  const int64_t width_;
  const int dim_;
  const int step_;
  const int64_t end_;
  const int64_t tokens_apart_;
  LaneColumns<T> next_[kTokensAtOnce];
};

// The same in parts (HasHcRuns). A warp has a part. A block keeps four rows of the matrix in its first-level
// cache while tokens go by, two groups of eight beside each other. Grid: tokens by tokens_per_block, rows by
// four, parts by four.
constexpr int kRowsAtOnce = 4;
constexpr int kPartsOfBlock = 4;

// A few tokens wait for the rows of the matrix run after run. They are weights: blocks of the same rows have
// them in L2 before the kernels in front have ended.
__device__ __forceinline__ void AskForMatrix(const float* fn, int first_row, int num_rows, int64_t width) {
  constexpr int kLine = 32;  // Floats.
  const float* const begin = fn + first_row * width;
  const int64_t count = min(kRowsAtOnce, num_rows - first_row) * width;
  for (int64_t i = (int64_t{blockIdx.z} * kThreads + threadIdx.x) * kLine; i < count;
       i += int64_t{gridDim.z} * kThreads * kLine)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(begin + i));
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 1) HcDotsFewKernel(const T* streams, const Params p) {
  static_assert(kRowsAtOnce * kTokensAtOnce == 32 && kHcMult % kRowsAtOnce == 0 &&
                kHcMixRows % kRowsAtOnce == 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int num_parts = static_cast<int>(gridDim.z) * kPartsOfBlock;
  const int part = static_cast<int>(blockIdx.z) * kPartsOfBlock + warp % kPartsOfBlock;
  const int first_row = static_cast<int>(blockIdx.y) * kRowsAtOnce;
  const int64_t width = int64_t{kHcMult} * p.dim;
  LetNextKernelStart();
  if (gridDim.x == 1) AskForMatrix(p.fn, first_row, p.num_rows, width);
  WaitForKernelsBefore();
  const int step = num_parts * kHcRunColumns;
  const int64_t place = LanePlace(lane, part, p.dim);
  constexpr int kTokensApart = kWarps / kPartsOfBlock * kTokensAtOnce;
  Tokens<T> tokens(p, streams, place, step, kTokensApart);
  int64_t first = blockIdx.x * p.tokens_per_block + warp / kPartsOfBlock * kTokensAtOnce;
  tokens.Ask(first, 0);
  for (; first < tokens.end(); first += kTokensApart) {
    float sums[32] = {};  // By token, then row.
    for (int run = 0; run < p.dim; run += step) {
      float b[kTokensAtOnce][kLaneColumns];
      if (first_row == p.num_rows) {
        // The row behind the matrix's: squares.
        tokens.Take(first, run, b);
#pragma unroll
        for (int t = 0; t < kTokensAtOnce; ++t) AddProducts(sums[t * kRowsAtOnce], b[t], b[t]);
        continue;
      }
      float a[kRowsAtOnce][kLaneColumns];
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r)
        LaneColumns<float>(p.fn + (first_row + r) * width + place + run).Widen(a[r]);
      tokens.Take(first, run, b);
#pragma unroll
      for (int t = 0; t < kTokensAtOnce; ++t) {
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) AddProducts(sums[t * kRowsAtOnce + r], a[r], b[t]);
      }
    }
    SumOverLanes(sums);
    const int64_t token = first + lane / kRowsAtOnce;
    const int row = first_row + lane % kRowsAtOnce;
    if (token < tokens.end() && row <= p.num_rows)
      p.dots[(token * (p.num_rows + 1) + row) * num_parts + part] = sums[0];
  }
}

// The same for more tokens. A block has a part of all rows, in shared memory. A warp has eight tokens and
// kRows rows; kGroups warps share their tokens, and the first of them sums squares. Grid: tokens by
// tokens_per_block, parts.
template <typename T, int kRows, int kGroups>
__global__ void __launch_bounds__(kThreads, 1) HcDotsManyKernel(const T* streams, const Params p) {
  constexpr int kValues = kRows * kTokensAtOnce;
  static_assert(kValues % 32 == 0);
  constexpr int kAllRows = kRows * kGroups;
  constexpr int kTokenGroups = kWarps / kGroups;
  extern __shared__ __align__(16) unsigned char raw_memory[];
  auto* const matrix = reinterpret_cast<float4*>(raw_memory);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int group = warp / kTokenGroups;
  const auto num_parts = static_cast<int>(gridDim.y);
  const auto part = static_cast<int>(blockIdx.y);
  const int step = num_parts * kHcRunColumns;
  LetNextKernelStart();
  CopyMatrixOfPart<kAllRows, kThreads>(matrix, p.fn, part, num_parts, p.dim / step, p.dim);
  WaitForKernelsBefore();
  constexpr int kTokensApart = kTokenGroups * kTokensAtOnce;
  Tokens<T> tokens(p, streams, LanePlace(lane, part, p.dim), step, kTokensApart);
  int64_t first = blockIdx.x * p.tokens_per_block + warp % kTokenGroups * kTokensAtOnce;
  tokens.Ask(first, 0);
  WaitForCopies<0>();
  __syncthreads();

  for (; first < tokens.end(); first += kTokensApart) {
    float sums[kValues / 32][32] = {};  // By token, then row.
    float squares[kTokensAtOnce] = {};
    const float4* a = matrix + group * kRows * 32 + lane;
    for (int run = 0; run < p.dim; run += step) {
      float b[kTokensAtOnce][kLaneColumns];
      tokens.Take(first, run, b);
      if (group == 0) {
#pragma unroll
        for (int t = 0; t < kTokensAtOnce; ++t) AddProducts(squares[t], b[t], b[t]);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 four = a[r * 32];
        const float row[kLaneColumns] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int t = 0; t < kTokensAtOnce; ++t)
          AddProducts(sums[(t * kRows + r) / 32][(t * kRows + r) % 32], row, b[t]);
      }
      a += kAllRows * 32;
    }
    const auto store = [&](int token, int row, float sum) {
      if (first + token < tokens.end())
        p.dots[((first + token) * (kAllRows + 1) + row) * num_parts + part] = sum;
    };
#pragma unroll
    for (int i = 0; i < kValues / 32; ++i) {
      SumOverLanes(sums[i]);
      const int value = i * 32 + lane;
      store(value / kRows, group * kRows + value % kRows, sums[i][0]);
    }
    if (group == 0) {
      SumOverLanes(squares);
      constexpr int kLanes = 32 / kTokensAtOnce;
      if (lane % kLanes == 0) store(lane / kLanes, kAllRows, squares[0]);
    }
  }
}

template <typename T, int kRows, int kGroups>
void LaunchMany(LaunchContext& context, const T* streams, Params p, int num_parts) {
  const int64_t wanted = std::max<int64_t>(1, context.limits().num_sms / num_parts);
  constexpr int64_t kTogether = kWarps / kGroups * kTokensAtOnce;
  p.tokens_per_block = CeilDiv(CeilDiv(p.num_tokens, wanted), kTogether) * kTogether;
  const dim3 blocks(static_cast<unsigned>(CeilDiv(p.num_tokens, p.tokens_per_block)),
                    static_cast<unsigned>(num_parts));
  context.Launch(HcDotsManyKernel<T, kRows, kGroups>, blocks, kThreads,
                 MatrixOfPartBytes(kRows * kGroups, HcRuns(p.dim)), streams, p);
}

}  // namespace

void LaunchHcDots(LaunchContext& context, HcDotsPath kernel, const TensorView& streams, const TensorView& fn,
                  const HcDots& to) {
  Params p = {.fn = fn.as<const float>(),
              .dots = to.data,
              .dim = static_cast<int>(streams.shape[2]),
              .num_rows = static_cast<int>(fn.shape[0]),
              .num_tokens = streams.shape[0],
              .tokens_per_block = 0};
  const auto tokens = static_cast<unsigned>(p.num_tokens);
  const auto row_blocks = static_cast<unsigned>(CeilDiv(p.num_rows + 1, kRowsAtOnce));
  WithElement(streams.dtype, [&]<typename T>(T*) {
    const T* const x = streams.as<const T>();
    switch (kernel) {
      case HcDotsPath::kManyTokens:
        // Rows are those of hc_pre or of hc_head (FitsManyDots).
        if (p.num_rows == kHcMult) {
          LaunchMany<T, kHcMult, 1>(context, x, p, to.num_parts);
        } else {
          LaunchMany<T, kHcMixRows / 2, 2>(context, x, p, to.num_parts);
        }
        break;
      case HcDotsPath::kRuns: {
        p.tokens_per_block = int64_t{2} * kTokensAtOnce;  // Spread over the device.
        const dim3 blocks(static_cast<unsigned>(CeilDiv(p.num_tokens, p.tokens_per_block)), row_blocks,
                          static_cast<unsigned>(to.num_parts / kPartsOfBlock));
        context.Launch(HcDotsFewKernel<T>, blocks, kThreads, 0, x, p);
        break;
      }
      case HcDotsPath::kAny:
        context.Launch(HcDotsAnyKernel<T>, dim3(tokens, static_cast<unsigned>(p.num_rows + 1)), kThreads, 0,
                       x, p.fn, p.dots, fn.shape[1], p.num_rows);
    }
  });
}

}  // namespace dsv4::backend::cuda
