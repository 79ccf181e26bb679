// hc_pre of 9 to 256 tokens. In the first launch a block has a part of the columns of all streams
// (hc_part.cuh) and takes eight tokens at a time. It does their hc_post, then their dot products: a warp has
// three rows of the matrix, and squares of one token. In the second launch a block has a token. It adds up
// the parts, mixes the streams and norms the result.
#include <algorithm>

#include "backend/cuda/device/numeric/eight_columns.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/hyper_connection/hc_mixes.cuh"
#include "backend/cuda/kernels/hyper_connection/hc_part.cuh"
#include "backend/cuda/kernels/hyper_connection/hc_step.h"
#include "backend/cuda/kernels/hyper_connection/hc_token_tiles.h"
#include "backend/cuda/kernels/rows/row_steps.cuh"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kFactors = kHcMult + kHcMult * kHcMult;  // post and comb of a token.
constexpr int kTokens = 8;                             // At a time.
constexpr int kWarps = kTokens;                        // A warp has a token, then rows.
constexpr int kThreads = 32 * kWarps;
constexpr int kRows = kHcMixRows / kWarps;
static_assert(kRows * kWarps == kHcMixRows);

// Shared memory of a block. It has the part's matrix; bf16 streams, [token][stream] of StreamColumns; and
// factors of hc_post.
// An odd number of runs, so that two streams' lie in different banks.
__host__ __device__ constexpr int StreamColumns(int runs) { return (runs | 1) * kHcRunColumns; }
constexpr size_t StreamsBytes(int runs) {
  return static_cast<size_t>(kTokens * kHcMult * StreamColumns(runs)) * sizeof(uint16_t);
}
constexpr size_t SharedBytes(int runs) {
  return MatrixOfPartBytes(kHcMixRows, runs) + StreamsBytes(runs) +
         size_t{kTokens} * kFactors * sizeof(float);
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
  __device__ __forceinline__ void Post(const HcStep& p, const float* factors, int64_t token, int64_t column) {
    const HcPostBefore& before = p.before;
    const int64_t dim = p.params.dim;
    float post[kHcMult];
    float comb[kHcMult][kHcMult];  // By its column.
#pragma unroll
    for (int j = 0; j < kHcMult; ++j) {
      post[j] = factors[j];
#pragma unroll
      for (int i = 0; i < kHcMult; ++i) comb[j][i] = factors[kHcMult + i * kHcMult + j];
    }
#pragma unroll
    for (int word = 0; word < kEightColumns / 2; ++word) {
      uint32_t made_y = 0;
      uint32_t made[kHcMult] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float value = Half(y[word], half);
        if (before.routed != nullptr) {
          const uint32_t bits = Bf16FromFloat(value + routed[2 * word + half]);
          made_y |= bits << (16 * half);
          value = __uint_as_float(bits << 16);
        }
#pragma unroll
        for (int j = 0; j < kHcMult; ++j) {
          const float sum =
              PostOf(post[j], value, comb[j], [&](int i) { return Half(streams[i][word], half); });
          made[j] |= static_cast<uint32_t>(Bf16FromFloat(sum)) << (16 * half);
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
  auto* const matrix = reinterpret_cast<float4*>(shared);
  const int stream_columns = StreamColumns(runs);
  auto* const streams = reinterpret_cast<uint16_t*>(matrix + kHcMixRows * runs * 32);
  auto* const factors = reinterpret_cast<float*>(streams + kTokens * kHcMult * stream_columns);
  CopyMatrixOfPart<kHcMixRows, kThreads>(matrix, p.fn, part, num_parts, runs, dim);
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
      float* const own_factors = factors + warp * kFactors;
      if (lane < kFactors) own_factors[lane] = factor;
      __syncwarp();
#pragma unroll 1
      for (; run < runs; run += 8) {
        if (has_post) columns.Post(p, own_factors, token, column(run));
#pragma unroll
        for (int j = 0; j < kHcMult; ++j) {
          StoreWords(streams + (warp * kHcMult + j) * stream_columns + run * kHcRunColumns +
                         lane % 4 * kEightColumns,
                     columns.streams[j]);
        }
        if (exists && run + 8 < runs) columns.Ask(p, token, column(run + 8));
      }
    }
    WaitForCopies<0>();
    __syncthreads();

    float sums[32] = {};  // Each token has the warp's rows, then the squares of the warp's token.
    constexpr int kSquares = kTokens * kRows;
#pragma unroll(kRuns > 0 ? 2 : 1)
    for (int run = 0; run < runs; ++run) {
      const uint16_t* const own = streams + lane / 8 * stream_columns + run * kHcRunColumns + lane % 8 * 4;
      const auto columns = [&](int token, float(&x)[kLaneColumns]) {
        LaneColumns<Bf16>(reinterpret_cast<const Bf16*>(own + token * kHcMult * stream_columns)).Widen(x);
      };
      float rows[kRows][kLaneColumns];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 four = matrix[(run * kHcMixRows + warp * kRows + r) * 32 + lane];
        rows[r][0] = four.x;
        rows[r][1] = four.y;
        rows[r][2] = four.z;
        rows[r][3] = four.w;
      }
      float x[kLaneColumns];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        columns(t, x);
#pragma unroll
        for (int r = 0; r < kRows; ++r) AddProducts(sums[t * kRows + r], rows[r], x);
      }
      columns(warp, x);
      AddProducts(sums[kSquares], x, x);
    }
    SumOverLanes(sums);
    const int token = lane == kSquares ? warp : lane / kRows;
    const int row = lane == kSquares ? kHcMixRows : warp * kRows + lane % kRows;
    if (lane <= kSquares && first_token + token < p.num_tokens)
      p.dots[(int64_t{first_token + token} * (kHcMixRows + 1) + row) * num_parts + part] = sums[0];
    __syncthreads();
  }
}

// Threads as the norm of such a row has them. Grid: blocks for post and comb if they are asked for, then
// tokens.
template <int kRowThreads>
__global__ void __launch_bounds__(kRowThreads, 1024 / kRowThreads)
    HcTokenTilesMixAndNormKernel(const __grid_constant__ HcStep p, int mix_blocks) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ float dots[kHcMult + 1];
  __shared__ float pre[kHcMult];
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
  float part = 0.0F;
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
    const float factor = NormFactor(dots[kHcMult], p.params.dim * kHcMult, p.params.norm_eps);
    const float own = Sigmoid(HcLogit(factor, dots[t], scale, base)) + p.params.hc_eps;
    pre[t] = StreamWeight(p.params, token, t, own, true);
  }
  __syncthreads();
#pragma unroll 1
  for (int d = t * kEightColumns; d < dim; d += kRowThreads * kEightColumns) {
    float sums[kEightColumns];
#pragma unroll
    for (int k = 0; k < kEightColumns; ++k) {
      sums[k] = RoundToBf16(MixOf(pre, kHcMult, [&](int i) { return Half(words[i][k / 2], k % 2); }));
    }
    load(d + kRowThreads * kEightColumns);
    StoreEight(row + d, sums);
  }
  __syncthreads();
  if (p.norm_weight != nullptr) RmsNormRow<kRowThreads>(row, dim, p.norm_weight, gains, p.norm_eps, true);
  WriteRow<kRowThreads>(row, p.u + token * dim, true, dim);
}

void LaunchPostAndDots(LaunchContext& context, const HcStep& step) {
  constexpr int kFlashRuns = 8;
  const auto num_parts = static_cast<int>(HcParts(step.params.dim));
  const int runs = HcRuns(step.params.dim);
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
