// hc_pre of 9 to 256 tokens. In the first launch a block has a part of the columns of all streams
// (hyper_connection.h) and takes eight tokens at a time. It does their hc_post, then dot products on tensor
// cores for doubles. Their steps m16n8k8 add eight products one by one as a lane of hyper_connection.cu's
// kernels does (hc_dots.cu). Rows of the matrix are the first operand's, tokens the second's. The first has
// eight rows to spare: they are the tokens once more, so that their squares are a diagonal. In the second
// launch a block has a token. It adds up the parts, mixes the streams and norms the result. Sums are made in
// the order of the kernels for fewer tokens and for more.
#include <algorithm>

#include "backend/cuda/device/numeric/eight_columns.cuh"
#include "backend/cuda/device/ptx/cp_async.cuh"
#include "backend/cuda/device/ptx/mma_f64.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/hyper_connection/hc_mixes.cuh"
#include "backend/cuda/kernels/hyper_connection/hc_step.h"
#include "backend/cuda/kernels/hyper_connection/hc_token_tiles.h"
#include "backend/cuda/kernels/rows/row_steps.cuh"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kFactors = kHcMult + kHcMult * kHcMult;  // post and comb of a token.
constexpr int kFours =
    kHcRunColumns / 4;           // A lane of hyper_connection.cu's has four columns of a run and stream.
constexpr int kTokens = 8;       // At a time.
constexpr int kWarps = kTokens;  // A warp has a token, then groups of four columns.
constexpr int kThreads = 32 * kWarps;
static_assert(kWarps == kFours);

// Shared memory of a block. It has the matrix, [stream][run][row] of 128 bytes each; bf16 streams,
// [stream][token] of TokenColumns; and factors of hc_post. Messages between warps reuse the streams' memory.
constexpr int kMatrixFloats = kHcMixRows * kHcRunColumns;  // Floats of a stream and run.
// With a gap that spreads tokens over banks.
__host__ __device__ constexpr int TokenColumns(int runs) { return runs * kHcRunColumns + 8; }
constexpr size_t kSumsBytes = kWarps * 8 * 32 * sizeof(double);
__host__ __device__ constexpr size_t MatrixBytes(int runs) {
  return static_cast<size_t>(kHcMult * runs * kMatrixFloats) * sizeof(float);
}
__host__ __device__ constexpr size_t StreamsBytes(int runs) {
  const size_t bytes = static_cast<size_t>(kHcMult * kTokens * TokenColumns(runs)) * sizeof(uint16_t);
  return bytes > kSumsBytes ? bytes : kSumsBytes;
}
constexpr size_t SharedBytes(int runs) {
  return MatrixBytes(runs) + StreamsBytes(runs) + size_t{kTokens} * kFactors * sizeof(double);
}

static_assert(SharedBytes(8) == HcTokenTilesSharedBytes(8) && SharedBytes(1) == HcTokenTilesSharedBytes(1));

// Eight columns as they are read, two a word.
using Words = uint32_t[kEightColumns / 2];
__device__ __forceinline__ void LoadWords(Words& words, const Bf16* from) {
  const uint4 eight = *reinterpret_cast<const uint4*>(from);
  words[0] = eight.x;
  words[1] = eight.y;
  words[2] = eight.z;
  words[3] = eight.w;
}
template <typename T>
__device__ __forceinline__ void StoreWords(T* to, const Words& words) {
  *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}
__device__ __forceinline__ float Half(uint32_t word, int half) {
  return __uint_as_float(half == 0 ? word << 16 : word & 0xFFFF0000U);
}

// Eight columns of a token: its streams, and what hc_post adds to them.
struct Columns {
  Words streams[kHcMult];
  Words y;  // Shared expert's part in front of moe_combine, 0 where there is none.
  float routed[kEightColumns];

  __device__ __forceinline__ void Ask(const HcStep& p, int64_t token, int64_t column) {
    const HcPostBefore& before = p.before;
    const int64_t dim = p.params.dim;
    const auto* const in = static_cast<const Bf16*>(before.out != nullptr ? before.residual : p.streams);
#pragma unroll
    for (int j = 0; j < kHcMult; ++j) LoadWords(streams[j], in + (token * kHcMult + j) * dim + column);
    if (before.out == nullptr) return;
    const auto* const of_y = static_cast<const Bf16*>(before.routed != nullptr ? before.shared : before.y);
    if (of_y != nullptr) {
      LoadWords(y, of_y + token * dim + column);
    } else {
#pragma unroll
      for (uint32_t& word : y) word = 0;
    }
    if (before.routed != nullptr) LoadEight(before.routed + token * dim + column, routed);
  }

  // [moe_combine and] hc_post, with the token's factors: as HcPostOfFourKernel.
  __device__ __forceinline__ void Post(const HcStep& p, const double* factors, int64_t token,
                                       int64_t column) {
    const HcPostBefore& before = p.before;
    const int64_t dim = p.params.dim;
    double post[kHcMult];
    double comb[kHcMult][kHcMult];
#pragma unroll
    for (int j = 0; j < kHcMult; ++j) {
      post[j] = factors[j];
#pragma unroll
      for (int i = 0; i < kHcMult; ++i) comb[i][j] = factors[kHcMult + i * kHcMult + j];
    }
#pragma unroll
    for (int word = 0; word < kEightColumns / 2; ++word) {
      uint32_t made_y = 0;
      uint32_t made[kHcMult] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float value = Half(y[word], half);
        if (before.routed != nullptr) {
          const double sum = static_cast<double>(value) + static_cast<double>(routed[2 * word + half]);
          const uint32_t bits = Bf16FromFloat(static_cast<float>(sum));
          made_y |= bits << (16 * half);
          value = __uint_as_float(bits << 16);
        }
        double x[kHcMult];
#pragma unroll
        for (int i = 0; i < kHcMult; ++i) x[i] = static_cast<double>(Half(streams[i][word], half));
#pragma unroll
        for (int j = 0; j < kHcMult; ++j) {
          double sum = post[j] * static_cast<double>(value);
#pragma unroll
          for (int i = 0; i < kHcMult; ++i) sum += comb[i][j] * x[i];
          made[j] |= static_cast<uint32_t>(Bf16FromFloat(static_cast<float>(sum))) << (16 * half);
        }
      }
      y[word] = made_y;
#pragma unroll
      for (int j = 0; j < kHcMult; ++j) streams[j][word] = made[j];
    }
    if (before.routed != nullptr) StoreWords(static_cast<Bf16*>(before.y) + token * dim + column, y);
#pragma unroll
    for (int j = 0; j < kHcMult; ++j)
      StoreWords(static_cast<Bf16*>(before.out) + (token * kHcMult + j) * dim + column, streams[j]);
  }
};

// kRuns: of a part; 0: any number. Grid: parts, blocks that share the tokens.
template <int kRuns>
__global__ void __launch_bounds__(kThreads, 2)
    HcTokenTilesPostAndDotsKernel(const __grid_constant__ HcStep p) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const auto dim = static_cast<int>(p.params.dim);
  const auto num_parts = static_cast<int>(gridDim.x);
  const auto part = static_cast<int>(blockIdx.x);
  const int step = num_parts * kHcRunColumns;  // From one of the part's runs to the next.
  const int runs = kRuns > 0 ? kRuns : dim / step;
  const int first_column = part * kHcRunColumns;
  auto* const matrix = reinterpret_cast<float*>(shared);
  auto* const streams = reinterpret_cast<uint16_t*>(shared + MatrixBytes(runs));
  auto* const sums_of_warps = reinterpret_cast<double*>(streams);
  auto* const factors = reinterpret_cast<double*>(shared + MatrixBytes(runs) + StreamsBytes(runs));
  const int token_columns = TokenColumns(runs);

  // Eight threads copy 128 bytes of a row; its pieces are swapped so that eight rows' lie in different banks.
  {
    constexpr int kRowsApart = 8;
    const int stream = thread / 64;
    const int row = thread / 8 % kRowsApart;
    const int piece = thread % 8;
    const float* from = p.fn + (int64_t{row} * kHcMult + stream) * dim + first_column + piece * 4;
    float* to = matrix + stream * runs * kMatrixFloats + row * kHcRunColumns + (piece ^ row) * 4;
#pragma unroll(kRuns > 0 ? kRuns : 1)
    for (int run = 0; run < runs; ++run) {
#pragma unroll
      for (int k = 0; k < kHcMixRows / kRowsApart; ++k)
        CopyAsync(to + k * kRowsApart * kHcRunColumns, from + int64_t{k} * kRowsApart * kHcMult * dim);
      from += step;
      to += kMatrixFloats;
    }
    CommitCopies();
  }
  LetNextKernelStart();
  WaitForKernelsBefore();

  const HcPostBefore& before = p.before;
  const int num_groups = (p.num_tokens + kTokens - 1) / kTokens;
#pragma unroll 1
  for (auto group = static_cast<int>(blockIdx.y); group < num_groups; group += static_cast<int>(gridDim.y)) {
    const int first_token = group * kTokens;
    {
      // Four lanes have a run of the warp's token.
      const int64_t token = first_token + warp;
      const bool exists = token < p.num_tokens;
      const bool has_post = before.out != nullptr && exists;
      const auto column = [&](int run) { return run * step + first_column + lane % 4 * kEightColumns; };
      float factor = 0.0F;
      if (has_post && lane < kFactors) {
        factor = lane < kHcMult ? before.post[token * kHcMult + lane]
                                : before.comb[token * (kHcMult * kHcMult) + lane - kHcMult];
      }
      Columns columns = {};
      int run = lane / 4;
      if (exists && run < runs) columns.Ask(p, token, column(run));
      double* const own_factors = factors + warp * kFactors;
      if (lane < kFactors) own_factors[lane] = static_cast<double>(factor);
      __syncwarp();
#pragma unroll 1
      for (; run < runs; run += 8) {
        if (has_post) columns.Post(p, own_factors, token, column(run));
#pragma unroll
        for (int j = 0; j < kHcMult; ++j) {
          StoreWords(
              streams + (j * kTokens + warp) * token_columns + run * kHcRunColumns + lane % 4 * kEightColumns,
              columns.streams[j]);
        }
        if (exists && run + 8 < runs) columns.Ask(p, token, column(run + 8));
      }
    }
    WaitForCopies<0>();
    __syncthreads();

    // Lane, for each stream, of hyper_connection.cu that has this warp's columns. Sums of two tiles of 16
    // rows, as a step has them; lanes of streams 0 and 2 meet first.
    const int token_of = lane / 4;
    const int place = lane % 4;
    double totals[2][4];
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      double sums[2][2][4] = {};
#pragma unroll(kRuns > 0 ? kRuns : 1)
      for (int run = 0; run < runs; run += 2) {
        const bool both = kRuns % 2 == 0 && kRuns > 0 ? true : run + 1 < runs;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int stream = pair + 2 * half;
          const uint16_t* const x = streams + (stream * kTokens + token_of) * token_columns +
                                    run * kHcRunColumns + warp * 4 + place;
          const float* const rows = matrix + (stream * runs + run) * kMatrixFloats +
                                    token_of * kHcRunColumns + (warp ^ token_of) * 4 + place;
          const auto of_x = [](const uint16_t* bits) {
            return static_cast<double>(__uint_as_float(static_cast<uint32_t>(*bits) << 16));
          };
          const auto of_row = [&](int k, int next) {
            return static_cast<double>(rows[next * kMatrixFloats + k * 8 * kHcRunColumns]);
          };
          const double x0 = of_x(x);
          const double x1 = both ? of_x(x + kHcRunColumns) : 0.0;
          double low[4] = {of_row(0, 0), of_row(1, 0), 0.0, 0.0};
          double high[4] = {of_row(2, 0), x0, 0.0, x1};
          if (both) {
            low[2] = of_row(0, 1);
            low[3] = of_row(1, 1);
            high[2] = of_row(2, 1);
          }
          AddDoubleProducts(sums[half][0], low, x0, x1);
          AddDoubleProducts(sums[half][1], high, x0, x1);
        }
      }
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const double sum = sums[0][tile][i] + sums[1][tile][i];
          totals[tile][i] = pair == 0 ? sum : totals[tile][i] + sum;
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; ++i) sums_of_warps[(warp * 8 + i) * 32 + lane] = totals[i / 4][i % 4];
    __syncthreads();
    {
      // Here a warp has number `warp` of every thread above.
      const auto of = [&](int other) { return sums_of_warps[(other * 8 + warp) * 32 + lane]; };
      const double dot = ((of(0) + of(4)) + (of(2) + of(6))) + ((of(1) + of(5)) + (of(3) + of(7)));
      const int row = warp / 2 * 8 + lane / 4;
      const int token = lane % 4 * 2 + warp % 2;
      const bool squares = row == kHcMixRows + token;
      if (first_token + token < p.num_tokens && (row < kHcMixRows || squares)) {
        p.dots[(int64_t{first_token + token} * (kHcMixRows + 1) + min(row, kHcMixRows)) * num_parts + part] =
            dot;
      }
    }
    __syncthreads();
  }
}

// Threads as the norm of such a row has them. Grid: blocks for post and comb if they are asked for, then
// tokens.
template <int kRowThreads>
__global__ void __launch_bounds__(kRowThreads, 1024 / kRowThreads)
    HcTokenTilesMixAndNormKernel(const __grid_constant__ HcStep p, int mix_blocks) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ double dots[kHcMult + 1];
  __shared__ double pre[kHcMult];
  LetNextKernelStart();
  const int t = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(blockIdx.x);
  if (block < mix_blocks) {
    WaitForKernelsBefore();
    return HcMixesOfBlock<kRowThreads>(p.params, block, p.num_tokens,
                                       *reinterpret_cast<MixesMemory*>(shared));
  }
  const int64_t token = block - mix_blocks;
  auto* const row = reinterpret_cast<float*>(shared);
  const auto dim = static_cast<int>(p.params.dim);
  RowWeights gains;
  if (p.norm_weight != nullptr) AskForWeights<kRowThreads>(gains, p.norm_weight, dim);
  const float scale = p.params.scale[0];
  const float base = t < kHcMult ? p.params.base[t] : 0.0F;
  WaitForKernelsBefore();
  // Parts of the first rows' products and of the squares, as many as a norm of such rows has warps: a thread
  // each.
  constexpr int kParts = kRowThreads / 32;
  const int of = t / kParts;
  double part = 0.0;
  if (of <= kHcMult)
    part = p.dots[(token * (kHcMixRows + 1) + (of < kHcMult ? of : kHcMixRows)) * kParts + t % kParts];
  const Bf16* const x = p.streams + token * kHcMult * dim;
  // As they are read: nothing waits for them before the mix is known.
  Words words[kHcMult];
  const auto load = [&](int d) {
    if (d >= dim) return;
#pragma unroll
    for (int i = 0; i < kHcMult; ++i) LoadWords(words[i], x + i * dim + d);
  };
  load(t * kEightColumns);
  if (t / 32 <= (kHcMult + 1) * kParts / 32) {
    // As SumOfParts.
#pragma unroll
    for (int offset = 1; offset < kParts; offset *= 2) part += __shfl_xor_sync(kWholeWarp, part, offset);
    if (of <= kHcMult && t % kParts == 0) dots[of] = part;
  }
  __syncthreads();
  if (t < kHcMult) {
    const double factor = NormFactor(dots[kHcMult], p.params.dim * kHcMult, p.params.norm_eps);
    const double own = Sigmoid(HcLogit(factor, dots[t], scale, base)) + static_cast<double>(p.params.hc_eps);
    pre[t] = StreamWeight(p.params, token, t, own, true);
  }
  __syncthreads();
#pragma unroll 1
  for (int d = t * kEightColumns; d < dim; d += kRowThreads * kEightColumns) {
    float sums[kEightColumns];
#pragma unroll
    for (int k = 0; k < kEightColumns; ++k) {
      double sum = 0.0;
#pragma unroll
      for (int i = 0; i < kHcMult; ++i) sum += pre[i] * static_cast<double>(Half(words[i][k / 2], k % 2));
      sums[k] = RowValue(sum, true);
    }
    load(d + kRowThreads * kEightColumns);
    StoreEight(row + d, sums);
  }
  __syncthreads();
  if (p.norm_weight != nullptr) RmsNormRow<kRowThreads>(row, dim, p.norm_weight, gains, p.norm_eps, true);
  WriteRow<kRowThreads>(row, p.u + token * dim, true, dim);
}

int Runs(int64_t dim) { return static_cast<int>(dim / (HcParts(dim) * kHcRunColumns)); }

void LaunchPostAndDots(LaunchContext& context, const HcStep& step) {
  constexpr int kFlashRuns = 8;
  const auto num_parts = static_cast<int>(HcParts(step.params.dim));
  const int runs = Runs(step.params.dim);
  const int num_groups = (step.num_tokens + kTokens - 1) / kTokens;
  const dim3 grid(static_cast<unsigned>(num_parts),
                  static_cast<unsigned>(std::clamp(context.limits().num_sms / num_parts, 1, num_groups)));
  context.Launch(
      runs == kFlashRuns ? HcTokenTilesPostAndDotsKernel<kFlashRuns> : HcTokenTilesPostAndDotsKernel<0>, grid,
      kThreads, SharedBytes(runs), step);
}

void LaunchMixAndNorm(LaunchContext& context, const HcStep& step) {
  const int64_t dim = step.params.dim;
  const int mix_blocks = step.with_mix ? MixBlocks(step.num_tokens) : 0;
  const bool narrow = dim <= kMaxNarrowRow;
  context.Launch(narrow ? HcTokenTilesMixAndNormKernel<kNarrowRowThreads>
                        : HcTokenTilesMixAndNormKernel<kWideRowThreads>,
                 static_cast<unsigned>(mix_blocks + step.num_tokens),
                 narrow ? kNarrowRowThreads : kWideRowThreads,
                 std::max(static_cast<size_t>(dim) * sizeof(float), sizeof(MixesMemory)), step, mix_blocks);
}

}  // namespace

void LaunchHcTokenTiles(LaunchContext& context, const HcPostBefore& before, const HcPreWork& pre,
                        const NormWork* norm, bool with_mix) {
  LaunchPostAndDots(context, MakeHcStep(before, pre, nullptr, true));
  LaunchMixAndNorm(context, MakeHcStep({}, pre, norm, with_mix));
}

}  // namespace dsv4::backend::cuda
