// A cluster of blocks holds a token. Each block has some columns of all streams, from hc_post to the norm of
// hc_pre's result. Columns are dealt out in runs of 32, as the norm's kernel deals them to its warps
// (RmsNormRow). A block's dot products are a part of hyper_connection.cu's. So sums are added in the same
// order there and here.
#include <cooperative_groups.h>

#include "backend/cuda/collectives/ll_exchange.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/sync/cluster_barrier.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/device/sync/stage_times.cuh"
#include "backend/cuda/kernels/hyper_connection/hc_cluster.h"
#include "backend/cuda/kernels/hyper_connection/hc_mix.cuh"
#include "backend/cuda/kernels/hyper_connection/hc_part.cuh"
#include "backend/cuda/kernels/hyper_connection/hc_step.h"
#include "backend/cuda/kernels/rows/row_steps.cuh"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kWideBlocks = kWideRowThreads / 32;
constexpr int kNarrowBlocks = kNarrowRowThreads / 32;

template <int kBlocks, int kRuns>
struct HcMemory {
  float4 x[kHcMult][kRuns * kHcRunColumns / 4];  // This block's columns of the streams.
  double squares[kBlocks];                       // Sums of u * u, by block.
  float parts[kHcMixRows + 1][kBlocks];          // Parts of the dot products, by block.
  float post[kHcMult];
  float comb[kHcMult][kHcMult];  // By its column.
  float pre[kHcMult];
  float u[kRuns * kHcRunColumns];
  uint64_t parts_came;
  uint64_t squares_came;
};

// Rows of fn kRows a warp, runs up to kRuns a block; kOverRanks: what is before is a sum over ranks. Grid: blocks of a cluster, tokens.
template <int kBlocks, int kRows, int kRuns, bool kOverRanks>
__global__ void __cluster_dims__(kBlocks) __launch_bounds__(kHcMixRows / kRows * 32)
    HcClusterKernel(const __grid_constant__ HcStep p) {
  constexpr int kWarps = kHcMixRows / kRows;
  constexpr int kOwnRuns = (kRuns + kWarps - 1) / kWarps;  // A warp's, where a lane has a column.
  MarkStage(Stage::kBegin);
  extern __shared__ __align__(16) unsigned char raw[];
  auto& m = *reinterpret_cast<HcMemory<kBlocks, kRuns>*>(raw);
  const cg::cluster_group cluster = cg::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank());
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int64_t token = blockIdx.y;
  const auto dim = static_cast<int>(p.params.dim);
  constexpr int kStep = kBlocks * kHcRunColumns;  // From one of this block's runs to the next.
  const int num_runs = dim / kStep;
  const int first_column = rank * kHcRunColumns;
  if (thread == 0) {
    InitReceipts(&m.parts_came, sizeof(m.parts));
    InitReceipts(&m.squares_came, sizeof(m.squares));
  }
  __syncwarp();
  ArriveAtClusterRelaxed();

  const auto own_column = [&](int stream, int run) -> float& {
    return reinterpret_cast<float*>(m.x[stream])[run * kHcRunColumns + lane];
  };

  // Weights, before anything that is waited for.
  float4 weights[kRows][kRuns];
  const float* const fn =
      p.fn + int64_t{warp * kRows} * kHcMult * dim + lane / 8 * dim + first_column + lane % 8 * 4;
#pragma unroll
  for (int run = 0; run < kRuns; ++run) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      weights[r][run] = run < num_runs
                            ? *reinterpret_cast<const float4*>(fn + r * kHcMult * dim + run * kStep)
                            : make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    }
  }
  float gains[kOwnRuns];
#pragma unroll
  for (int i = 0; i < kOwnRuns; ++i) {
    const int run = warp + i * kWarps;
    gains[i] =
        p.norm_weight != nullptr && run < num_runs ? p.norm_weight[run * kStep + first_column + lane] : 0.0F;
  }
  const float scale = p.params.scale[0];
  const float base = thread < kHcMult ? p.params.base[thread] : 0.0F;
  LetNextKernelStart();
  MarkStage(Stage::kAsked);
  WaitForKernelsBefore();
  MarkStage(Stage::kInput);

  // The streams, from hc_post or as they are.
  const HcPostBefore& before = p.before;
  Bf16 streams[kOwnRuns][kHcMult];
  float ys[kOwnRuns];
  float routed[kOwnRuns];
  const auto* const in = static_cast<const Bf16*>(before.out != nullptr ? before.residual : p.streams);
  const auto* const y_in =
      static_cast<const Bf16*>(kOverRanks ? nullptr : (before.routed != nullptr ? before.shared : before.y));
  [[maybe_unused]] SumOverRanks ranks(before.links);
#pragma unroll
  for (int i = 0; i < kOwnRuns; ++i) {
    const int run = warp + i * kWarps;
    if (run >= num_runs) break;
    const int64_t column = run * kStep + first_column + lane;
#pragma unroll
    for (int j = 0; j < kHcMult; ++j) streams[i][j] = in[(token * kHcMult + j) * dim + column];
    // A shared expert's part that is not there is 0.
    if (before.out != nullptr) ys[i] = y_in != nullptr ? ToFloat(y_in[token * dim + column]) : 0.0F;
    if (before.routed != nullptr) routed[i] = before.routed[token * dim + column];
    if (kOverRanks && before.shared != nullptr)
      routed[i] += static_cast<const float*>(before.shared)[token * dim + column];
  }
  if constexpr (kOverRanks) {
#pragma unroll
    for (int i = 0; i < kOwnRuns; ++i) {
      const int run = warp + i * kWarps;
      if (run < num_runs) ranks.Push(token * dim + run * kStep + first_column + lane, routed[i]);
    }
  }
  if (before.out != nullptr) {
    if (thread < kHcMult) m.post[thread] = before.post[token * kHcMult + thread];
    if (thread >= 32 && thread < 32 + kHcMult * kHcMult) {
      const int element = thread - 32;
      m.comb[element % kHcMult][element / kHcMult] = before.comb[token * kHcMult * kHcMult + element];
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kOwnRuns; ++i) {
    const int run = warp + i * kWarps;
    if (run >= num_runs) break;
    float x[kHcMult];
#pragma unroll
    for (int j = 0; j < kHcMult; ++j) x[j] = ToFloat(streams[i][j]);
    if (before.out != nullptr) {
      if constexpr (kOverRanks) {
        const int64_t place = token * dim + run * kStep + first_column + lane;
        routed[i] = ranks.Take(place, routed[i]);
        before.sum[place] = routed[i];
      }
      if (before.routed != nullptr) ys[i] = ToFloat(FromFloat<Bf16>(ys[i] + routed[i]));
#pragma unroll
      for (int j = 0; j < kHcMult; ++j) {
        streams[i][j] = FromFloat<Bf16>(PostOf(m.post[j], ys[i], m.comb[j], [&](int k) { return x[k]; }));
      }
#pragma unroll
      for (int j = 0; j < kHcMult; ++j) x[j] = ToFloat(streams[i][j]);
    }
#pragma unroll
    for (int j = 0; j < kHcMult; ++j) own_column(j, run) = x[j];
  }
  [[maybe_unused]] int left_before = 0;
  if constexpr (kOverRanks) {
    left_before = ranks.LeaveBlock(__syncthreads_or(ranks.whole() ? 0 : 1) == 0);
  } else {
    __syncthreads();
  }

  MarkStage(Stage::kReady);
  // Dot products of a warp's rows; the last warp sums squares too.
  const bool sums_squares = warp == kWarps - 1;
  float sums[kRows] = {};
  float square = 0.0F;
#pragma unroll
  for (int run = 0; run < kRuns; ++run) {
    if (run >= num_runs) break;
    const float4 columns = m.x[lane / 8][run * 8 + lane % 8];
    const float x[kLaneColumns] = {columns.x, columns.y, columns.z, columns.w};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 w = weights[r][run];
      AddProducts(sums[r], {w.x, w.y, w.z, w.w}, x);
    }
    if (sums_squares) AddProducts(square, x, x);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) sums[r] = WarpSum(sums[r]);
  if (sums_squares) square = WarpSum(square);
  MarkStage(Stage::kStreamed);
  WaitForCluster();
  if (lane < kBlocks) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) SendTo(&m.parts[warp * kRows + r][rank], sums[r], &m.parts_came, lane);
    if (sums_squares) SendTo(&m.parts[kHcMixRows][rank], square, &m.parts_came, lane);
  }
  if (before.out != nullptr) {
#pragma unroll
    for (int i = 0; i < kOwnRuns; ++i) {
      const int run = warp + i * kWarps;
      if (run >= num_runs) break;
      const int64_t column = run * kStep + first_column + lane;
#pragma unroll
      for (int j = 0; j < kHcMult; ++j)
        static_cast<Bf16*>(before.out)[(token * kHcMult + j) * dim + column] = streams[i][j];
      if (before.routed != nullptr)
        static_cast<Bf16*>(before.y)[token * dim + column] = FromFloat<Bf16>(ys[i]);
    }
  }
  WaitForReceipts(&m.parts_came);
  MarkStage(Stage::kMet);

  if (thread < kHcMult) {
    const float factor =
        NormFactor(SumOfParts<kBlocks>(m.parts[kHcMixRows]), p.params.dim * kHcMult, p.params.norm_eps);
    const float logit = HcLogit(factor, SumOfParts<kBlocks>(m.parts[thread]), scale, base);
    m.pre[thread] = StreamWeight(p.params, token, thread, Sigmoid(logit) + p.params.hc_eps, rank == 0);
  }
  if (rank == 0 && thread >= 32 && thread < 32 + kHcMixRows + 1)
    p.dots[token * (kHcMixRows + 1) + thread - 32] = SumOfParts<kBlocks>(m.parts[thread - 32]);
  __syncthreads();
  double values[kOwnRuns];
#pragma unroll
  for (int i = 0; i < kOwnRuns; ++i) {
    const int run = warp + i * kWarps;
    if (run >= num_runs) break;
    const float value = RoundToBf16(MixOf(m.pre, kHcMult, [&](int j) { return own_column(j, run); }));
    m.u[run * kHcRunColumns + lane] = value;
    values[i] = static_cast<double>(value);
  }
  if (p.norm_weight != nullptr) {
    // This block is warp `rank` of RmsNormRow.
    __syncthreads();
    if (warp == 0) {
      double sum = 0.0;
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        if (run >= num_runs) break;
        const auto value = static_cast<double>(m.u[run * kHcRunColumns + lane]);
        sum += value * value;
      }
      sum = WarpSum(sum);
      if (lane < kBlocks) SendTo(&m.squares[rank], sum, &m.squares_came, lane);
    }
    WaitForReceipts(&m.squares_came);
    double sum = m.squares[0];
#pragma unroll
    for (int block = 1; block < kBlocks; ++block) sum += m.squares[block];
    const double mean_square = sum / static_cast<double>(dim);
    const double factor = 1.0 / sqrt(mean_square + static_cast<double>(p.norm_eps));
#pragma unroll
    for (int i = 0; i < kOwnRuns; ++i)
      values[i] = static_cast<double>(RowValue(values[i] * (factor * static_cast<double>(gains[i])), true));
  }
#pragma unroll
  for (int i = 0; i < kOwnRuns; ++i) {
    const int run = warp + i * kWarps;
    if (run >= num_runs) break;
    Store(p.u, token * dim + run * kStep + first_column + lane, values[i]);
  }
  if constexpr (kOverRanks) ranks.EndRound(left_before);
  EndStages(StageKernel::kHyperConnection, int64_t{kHcMixRows} * kHcMult * dim * 4 / kBlocks);
  // No thread reads the old post and comb any more.
  if (p.with_mix && rank == 0) {
    __syncthreads();
    HcMixOfToken<kWarps * 32>(p.params, token);
  }
}

struct KernelChoice {
  void (*kernel)(HcStep);
  unsigned blocks;
  unsigned threads;
  size_t shared_bytes;
};

template <int kBlocks, int kRows, int kRuns>
KernelChoice Choice(bool over_ranks) {
  return {over_ranks ? HcClusterKernel<kBlocks, kRows, kRuns, true>
                     : HcClusterKernel<kBlocks, kRows, kRuns, false>,
          kBlocks, kHcMixRows / kRows * 32, sizeof(HcMemory<kBlocks, kRuns>)};
}

// Rows a warp as many as its registers hold with all their runs.
static_assert(kMaxHcClusterDim == int64_t{16} * kWideBlocks * kHcRunColumns);
KernelChoice ChoiceOf(int64_t dim, bool over_ranks) {
  if (dim <= kMaxNarrowRow) return Choice<kNarrowBlocks, 3, 8>(over_ranks);
  return dim <= int64_t{8} * kWideBlocks * kHcRunColumns ? Choice<kWideBlocks, 3, 8>(over_ranks)
                                                         : Choice<kWideBlocks, 2, 16>(over_ranks);
}

}  // namespace

bool HoldsHcCluster(LaunchContext& context, int64_t dim, bool over_ranks) {
  const KernelChoice choice = ChoiceOf(dim, over_ranks);
  return context.HasCluster(reinterpret_cast<const void*>(choice.kernel), choice.blocks, choice.threads,
                            choice.shared_bytes);
}

void LaunchHcCluster(LaunchContext& context, const HcPostBefore& before, const HcPreWork& pre,
                     const NormWork* norm, bool with_mix) {
  const KernelChoice choice = ChoiceOf(pre.params.dim, before.links.size > 0);
  context.Launch(choice.kernel, dim3(choice.blocks, static_cast<unsigned>(pre.num_tokens)), choice.threads,
                 choice.shared_bytes, MakeHcStep(before, pre, norm, with_mix));
}

}  // namespace dsv4::backend::cuda
