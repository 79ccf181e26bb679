// expert_terms of experts of any format: assignments grouped on the device, then gate, up, SwiGLU and down by
// tiles.
#include <span>

#include "backend/cuda/device/numeric/swiglu.cuh"
#include "backend/cuda/device/sync/device_fault.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/gemm/gemm_fma.cuh"
#include "backend/cuda/kernels/gemm/gemm_mma.cuh"
#include "backend/cuda/kernels/moe/routed_experts.h"
#include "backend/cuda/kernels/packing/activations.h"
#include "backend/cuda/kernels/sm100/block_scaled.h"

namespace dsv4::backend::cuda {
namespace {

// --- Grouping --------------------------------------------------------------------------------------------------------

using Tile = ExpertTile;

constexpr int kGroupThreads = 1024;

// An inclusive running total over the threads of the block, and what they have together.
struct RunningTotal {
  int32_t upto;
  int32_t all;
};
__device__ RunningTotal BlockScan(int32_t value, int32_t (&warp_totals)[kGroupThreads / 32]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto scan = [lane](int32_t sum) {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int32_t before = __shfl_up_sync(kWholeWarp, sum, offset);
      if (lane >= offset) sum += before;
    }
    return sum;
  };
  value = scan(value);
  __syncthreads();  // No warp still reads the totals of the scan before.
  if (lane == 31) warp_totals[warp] = value;
  __syncthreads();
  const int32_t totals = scan(warp_totals[lane]);
  const int32_t before = __shfl_sync(kWholeWarp, totals, (warp + 31) % 32);
  return {value + (warp == 0 ? 0 : before), __shfl_sync(kWholeWarp, totals, 31)};
}
static_assert(kGroupThreads == 32 * 32);

// The experts with the ids [first, first + count) of num_experts; weights know them by their indices among
// these.
struct ExpertsHere {
  int first;
  int count;
  int num_experts;

  // -1 for one that is not here.
  __device__ int PlaceOf(int32_t expert) const {
    return expert >= first && expert - first < count ? expert - first : -1;
  }
};

// One block. `order` receives the assignments of experts that are here, token * top_k + slot, by expert and
// then in their own order.
__global__ void __launch_bounds__(kGroupThreads)
    RoutedExpertsGroupKernel(const int32_t* indices, int num_assignments, int top_k, const ExpertsHere here,
                             int tokens_per_tile, int max_tiles, int32_t* order, Tile* tiles,
                             FaultKind wrong_index, Fault* fault) {
  BeginKernel();
  const int num_experts = here.count;
  extern __shared__ int32_t shared[];
  __shared__ int32_t warp_totals[kGroupThreads / 32];
  int32_t* const counts = shared;                // [num_experts]
  int32_t* const places = counts + num_experts;  // [num_experts], of the next assignment
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  for (int e = thread; e < num_experts; e += kGroupThreads) counts[e] = 0;
  __syncthreads();
  for (int i = thread; i < num_assignments; i += kGroupThreads) {
    const int32_t expert = indices[i];
    const int place = here.PlaceOf(expert);
    if (place >= 0) atomicAdd(&counts[place], 1);
    if (expert < 0 || expert >= here.num_experts)
      ReportFault(fault, wrong_index, i / top_k, i % top_k, expert, here.num_experts);
  }
  __syncthreads();
  int32_t assignments_before = 0;
  int32_t tiles_before = 0;
  for (int first = 0; first < num_experts; first += kGroupThreads) {
    const int e = first + thread;
    const int32_t count = e < num_experts ? counts[e] : 0;
    const int32_t tiles_of = (count + tokens_per_tile - 1) / tokens_per_tile;
    const RunningTotal assignments = BlockScan(count, warp_totals);
    const RunningTotal tile_sum = BlockScan(tiles_of, warp_totals);
    const int32_t begin = assignments_before + assignments.upto - count;
    if (e < num_experts) places[e] = begin;
    Tile* const mine = tiles + tiles_before + tile_sum.upto - tiles_of;
    for (int t = 0; t < tiles_of; ++t) {
      const int done = t * tokens_per_tile;
      mine[t] = {e, begin + done, min(tokens_per_tile, count - done)};
    }
    assignments_before += assignments.all;
    tiles_before += tile_sum.all;
  }
  for (int t = tiles_before + thread; t < max_tiles; t += kGroupThreads) tiles[t] = {0, 0, 0};
  __syncthreads();
  if (thread >= 32) return;
  // One warp gives the assignments their rows, 32 at a time; loads are prefetched.
  constexpr int kAhead = 4;
  int32_t next[kAhead];
  const auto load = [&](int i) { return i < num_assignments ? here.PlaceOf(indices[i]) : -1; };
#pragma unroll
  for (int k = 0; k < kAhead; ++k) next[k] = load(k * 32 + lane);
  for (int first = 0; first < num_assignments; first += kAhead * 32) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int i = first + k * 32 + lane;
      const int32_t expert = next[k];
      next[k] = load(i + kAhead * 32);
      const bool exists = expert >= 0;
      const unsigned same = __match_any_sync(kWholeWarp, expert);
      const int32_t place = exists ? places[expert] : 0;
      __syncwarp();
      if (exists) {
        order[place + __popc(same & ((1U << lane) - 1U))] = i;
        if (__ffs(static_cast<int>(same)) - 1 == lane) places[expert] = place + __popc(same);
      }
      __syncwarp();
    }
  }
}

// --- GEMMs -------------------------------------------------------------------------------------------------

// Per expert: w1 (gate), w3 (up), w2 (down), as in an ExpertTable.
constexpr int kMatrices = 3;
constexpr int kGate = 0;
constexpr int kDown = 2;

struct ExpertMatmulParams {
  const DeviceWeight* weights;  // [num_experts, kMatrices]
  int first_matrix;             // kGate: w1 and w3, as blockIdx.z says; kDown: w2.
  int x_group;                  // Only matrices that want this form of x take part (DeviceWeight).
  const Tile* tiles;
  const int32_t* order;
  const void* x;
  int64_t x_stride;
  int x_divisor;  // The row of x of an assignment: assignment / x_divisor.
  void* y;        // [num_assignments, rows] for each matrix of this launch
  int64_t y_matrix_stride;
  bool y_is_bf16;
};

__device__ __forceinline__ void StoreHeld(const ExpertMatmulParams& p, int assignment, int64_t rows,
                                          int64_t row, float value) {
  const int64_t place = blockIdx.z * p.y_matrix_stride + assignment * rows + row;
  if (p.y_is_bf16) {
    static_cast<uint16_t*>(p.y)[place] = Bf16FromFloat(value);
  } else {
    static_cast<float*>(p.y)[place] = value;
  }
}

// Grid: tiles, row tiles, matrices.
template <MatmulKind kKind, int kTokenTiles>
__global__ void __launch_bounds__(kMatmulThreads) RoutedExpertsMmaKernel(const ExpertMatmulParams p) {
  BeginKernel();
  const Tile tile = p.tiles[blockIdx.x];
  if (tile.count == 0) return;
  const DeviceWeight& shared_weight = p.weights[tile.expert * kMatrices + p.first_matrix + blockIdx.z];
  if (shared_weight.kind != kKind || shared_weight.x_group != p.x_group) return;
  const DeviceWeight weight = shared_weight;
  const int32_t* const order = p.order + tile.begin;
  MultiplyTile<kKind, kTokenTiles>(
      weight, blockIdx.y * int64_t{kTileRows}, weight.rows, tile.count,
      [&](int token) { return static_cast<const uint16_t*>(p.x) + order[token] / p.x_divisor * p.x_stride; },
      [&](int token, int64_t row, float sum) { StoreHeld(p, order[token], weight.rows, row, sum); });
}

template <typename X>
__global__ void __launch_bounds__(kMatmulThreads) RoutedExpertsFmaKernel(const ExpertMatmulParams p) {
  BeginKernel();
  const Tile tile = p.tiles[blockIdx.x];
  if (tile.count == 0) return;
  const DeviceWeight weight = p.weights[tile.expert * kMatrices + p.first_matrix + blockIdx.z];
  if (weight.kind != MatmulKind::kGeneral || weight.x_group != p.x_group) return;
  const int64_t row = blockIdx.y * int64_t{kGeneralRows} + threadIdx.x / 32;
  if (row >= weight.rows) return;
  for (int first = 0; first < tile.count; first += kGeneralTokens) {
    const int32_t* const order = p.order + tile.begin + first;
    MultiplyRow<X>(
        weight, row, min(kGeneralTokens, tile.count - first),
        [&](int token) { return static_cast<const X*>(p.x) + order[token] / p.x_divisor * p.x_stride; },
        [&](int token, float sum) { StoreHeld(p, order[token], weight.rows, row, sum); });
  }
}

// --- Between and behind them -----------------------------------------------------------------------------------------

// gate and up [num_assignments, width], one behind the other; the routing weight belongs to the row. Rows of
// experts that are elsewhere, which nothing has written, become zeros.
template <typename T>
__global__ void RoutedExpertsSwigluKernel(const T* gate, const int32_t* indices, const ExpertsHere here,
                                          const float* weights, T* y, int64_t count, int64_t width,
                                          float limit) {
  BeginKernel();
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= count) return;
  if (here.PlaceOf(indices[i / width]) < 0) {
    Store(y, i, 0.0);
    return;
  }
  Store(y, i,
        ClampedSwiglu(Load(gate, i), Load(gate, count + i), static_cast<double>(limit),
                      static_cast<double>(weights[i / width])));
}

// --- The op ----------------------------------------------------------------------------------------------------------

struct TilePlan {
  const ExpertTable* table = nullptr;
  bool block_scaled = false;
  int token_tiles = 1;
  int max_tiles = 0;
  const Tile* tiles = nullptr;
  const int32_t* order = nullptr;
};

template <int kTokenTiles>
void LaunchTiles(LaunchContext& context, MatmulKind kind, const ExpertMatmulParams& params, DType x_dtype,
                 dim3 grid) {
  switch (kind) {
    case MatmulKind::kMmaBf16:
      context.Launch(RoutedExpertsMmaKernel<MatmulKind::kMmaBf16, kTokenTiles>, grid, kMatmulThreads, 0,
                     params);
      return;
    case MatmulKind::kMmaFp8:
      context.Launch(RoutedExpertsMmaKernel<MatmulKind::kMmaFp8, kTokenTiles>, grid, kMatmulThreads, 0,
                     params);
      return;
    case MatmulKind::kMmaMxFp8:
      context.Launch(RoutedExpertsMmaKernel<MatmulKind::kMmaMxFp8, kTokenTiles>, grid, kMatmulThreads, 0,
                     params);
      return;
    case MatmulKind::kMmaMxFp4:
      context.Launch(RoutedExpertsMmaKernel<MatmulKind::kMmaMxFp4, kTokenTiles>, grid, kMatmulThreads, 0,
                     params);
      return;
    case MatmulKind::kMmaMxFp4Stored:
      context.Launch(RoutedExpertsMmaKernel<MatmulKind::kMmaMxFp4Stored, kTokenTiles>, grid, kMatmulThreads,
                     0, params);
      return;
    case MatmulKind::kMmaNvFp4:
      context.Launch(RoutedExpertsMmaKernel<MatmulKind::kMmaNvFp4, kTokenTiles>, grid, kMatmulThreads, 0,
                     params);
      return;
    case MatmulKind::kGeneral:
      WithElement(x_dtype, [&]<typename X>(X*) {
        context.Launch(RoutedExpertsFmaKernel<X>, grid, kMatmulThreads, 0, params);
      });
  }
}

// MultiplyExperts on the block-scaled unit, for experts that are alike.
Status MultiplyBlockScaledExperts(LaunchContext& context, const TilePlan& plan, int first_matrix,
                                  int num_matrices, const void* x, DType dtype, int64_t num_rows,
                                  int x_divisor, void* y, int64_t num_assignments) {
  const DeviceWeight& weight = first_matrix == kDown ? plan.table->w2 : plan.table->w1;
  DSV4_ASSIGN_OR_RETURN_STATUS(const BlockScaledRows rows,
                               RoundBlockScaled(context, weight, x, dtype, weight.cols, num_rows));
  MultiplyBlockScaled(context, {.weight = weight,
                                .experts = plan.table->weights,
                                .first_matrix = first_matrix,
                                .tiles = plan.tiles,
                                .num_tiles = plan.max_tiles,
                                .order = plan.order,
                                .divisor = x_divisor,
                                .x = rows,
                                .num_groups = num_matrices,
                                .rows = static_cast<int>(weight.rows),
                                .y = y,
                                .y_stride = weight.rows,
                                .y_group_stride = num_assignments * weight.rows,
                                .y_is_bf16 = dtype == DType::kBF16});
  return {};
}

// x [num_rows, cols] contiguous times matrices first_matrix .. first_matrix + num_matrices of every chosen
// expert.
Status MultiplyExperts(LaunchContext& context, const TilePlan& plan, std::span<const ExpertVariant> variants,
                       int first_matrix, int num_matrices, const void* x, DType dtype, int64_t num_rows,
                       int64_t cols, int x_divisor, void* y, int64_t num_assignments, int64_t rows) {
  if (plan.block_scaled) {
    return MultiplyBlockScaledExperts(context, plan, first_matrix, num_matrices, x, dtype, num_rows,
                                      x_divisor, y, num_assignments);
  }
  for (const auto& [kind, x_group] : variants) {
    DSV4_ASSIGN_OR_RETURN_STATUS(const ActivationRows packed,
                                 PrepareActivations(context, x, dtype, cols, num_rows, cols, x_group, kind));
    const ExpertMatmulParams params = {.weights = plan.table->weights,
                                       .first_matrix = first_matrix,
                                       .x_group = x_group,
                                       .tiles = plan.tiles,
                                       .order = plan.order,
                                       .x = packed.data,
                                       .x_stride = packed.stride,
                                       .x_divisor = x_divisor,
                                       .y = y,
                                       .y_matrix_stride = num_assignments * rows,
                                       .y_is_bf16 = dtype == DType::kBF16};
    const int rows_per_block = kind == MatmulKind::kGeneral ? kGeneralRows : kTileRows;
    const dim3 grid(static_cast<unsigned>(plan.max_tiles),
                    static_cast<unsigned>(CeilDiv(rows, rows_per_block)),
                    static_cast<unsigned>(num_matrices));
    if (plan.token_tiles == 1) {
      LaunchTiles<1>(context, kind, params, packed.dtype, grid);
    } else {
      LaunchTiles<4>(context, kind, params, packed.dtype, grid);
    }
  }
  return {};
}

ExpertsHere HereOf(const ops::ExpertTermsArgs& args) {
  return {static_cast<int>(args.first_expert), static_cast<int>(args.experts.size()),
          static_cast<int>(args.num_experts)};
}

}  // namespace

Result<ExpertGroups> GroupAssignments(LaunchContext& context, const TermsWork& work, int tokens_per_tile) {
  const ops::ExpertTermsArgs& args = work.args;
  const int64_t num_assignments = args.indices.num_elements();
  const auto num_here = static_cast<int64_t>(args.experts.size());
  ExpertGroups groups = {.tokens_per_tile = tokens_per_tile};
  groups.max_tiles =
      static_cast<int>(num_assignments / tokens_per_tile + std::min(num_assignments, num_here));
  DSV4_ASSIGN_OR_RETURN(int32_t* const order, context.Scratch<int32_t>(num_assignments));
  DSV4_ASSIGN_OR_RETURN(Tile* const tiles, context.Scratch<Tile>(groups.max_tiles));
  context.Launch(RoutedExpertsGroupKernel, 1, kGroupThreads,
                 static_cast<size_t>(2 * num_here) * sizeof(int32_t), args.indices.as<const int32_t>(),
                 static_cast<int>(num_assignments), static_cast<int>(args.indices.shape[1]), HereOf(args),
                 tokens_per_tile, groups.max_tiles, order, tiles, work.wrong_index, context.fault());
  groups.order = order;
  groups.tiles = tiles;
  return groups;
}

namespace {

Result<TilePlan> MakePlan(LaunchContext& context, const ExpertTable& table, bool block_scaled,
                          const TermsWork& work) {
  TilePlan plan;
  plan.table = &table;
  plan.block_scaled = block_scaled;
  plan.token_tiles = work.args.indices.num_elements() > 8 * work.args.num_experts ? 4 : 1;
  const int tokens_per_tile = block_scaled ? kBlockScaledTokens : plan.token_tiles * kTokensPerTile;
  DSV4_ASSIGN_OR_RETURN(const ExpertGroups groups, GroupAssignments(context, work, tokens_per_tile));
  plan.max_tiles = groups.max_tiles;
  plan.order = groups.order;
  plan.tiles = groups.tiles;
  return plan;
}

}  // namespace

Status ExpertTermsOfAny(LaunchContext& context, const ExpertTable& table, bool block_scaled,
                        const TermsWork& work) {
  const ops::ExpertTermsArgs& args = work.args;
  const int64_t dim = args.x.shape[1];
  const int64_t inter_dim = table.w1.rows;
  const int64_t num_assignments = args.indices.num_elements();
  const DType dtype = args.x.dtype;
  const int64_t element = ElementBytes(dtype);
  DSV4_ASSIGN_OR_RETURN_STATUS(const TilePlan plan, MakePlan(context, table, block_scaled, work));
  DSV4_ASSIGN_OR_RETURN_STATUS(
      void* const gate_up,
      context.ScratchBytes(static_cast<size_t>(2 * num_assignments * inter_dim * element)));
  DSV4_ASSIGN_OR_RETURN_STATUS(
      void* const hidden, context.ScratchBytes(static_cast<size_t>(num_assignments * inter_dim * element)));
  DSV4_RETURN_IF_ERROR(MultiplyExperts(context, plan, plan.table->gate_up, kGate, 2, args.x.data, dtype,
                                       args.x.shape[0], dim, static_cast<int>(args.indices.shape[1]), gate_up,
                                       num_assignments, inter_dim));
  constexpr int kThreads = 256;
  const int64_t count = num_assignments * inter_dim;
  WithElement(dtype, [&]<typename T>(T*) {
    context.Launch(RoutedExpertsSwigluKernel<T>, static_cast<unsigned>(CeilDiv(count, kThreads)), kThreads, 0,
                   static_cast<const T*>(gate_up), args.indices.as<const int32_t>(), HereOf(args),
                   args.weights.as<const float>(), static_cast<T*>(hidden), count, inter_dim, args.limit);
  });
  return MultiplyExperts(context, plan, plan.table->down, kDown, 1, hidden, dtype, num_assignments, inter_dim,
                         1, args.terms.data, num_assignments, dim);
}

}  // namespace dsv4::backend::cuda
