#include <algorithm>

#include "backend/cuda/kernels/device_fault.cuh"
#include "backend/cuda/kernels/linear_wgmma.h"
#include "backend/cuda/kernels/matmul_wgmma.cuh"
#include "backend/cuda/kernels/reduce.cuh"
#include "backend/cuda/kernels/routed_experts_wgmma.h"
#include "backend/cuda/kernels/swiglu.cuh"

namespace dsv4::backend::cuda {
namespace {

// --- Grouping --------------------------------------------------------------------------------------------------------

// Packed rows [begin, begin + count), which are assignments of one expert.
struct Tile {
  int32_t expert;
  int32_t begin;
  int32_t count;
};

// Assignments by expert, each expert's in their own order and beginning at a multiple of kPackedRows.
struct Grouping {
  int32_t* counts;  // [num_experts]
  int32_t* order;   // [max_rows], the assignment of a packed row, -1 where there is none
  Tile* tiles;      // [max_tiles]
  int32_t* num_tiles;
  int num_experts;
  int num_assignments;
  int max_rows;
};

constexpr int kGroupThreads = 256;

__device__ __forceinline__ int TilesOf(int count) { return (count + kWgmmaTokens - 1) / kWgmmaTokens; }
__device__ __forceinline__ int RowsOf(int count) {
  constexpr int kRows = static_cast<int>(kPackedRows);
  return (count + kRows - 1) / kRows * kRows;
}

// One block an expert.
__global__ void __launch_bounds__(kGroupThreads)
    CountKernel(const int32_t* indices, int top_k, const Grouping g, Fault* fault) {
  BeginKernel();
  const int expert = static_cast<int>(blockIdx.x);
  int mine = 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < g.num_assignments; i += kGroupThreads) {
    const int32_t index = indices[i];
    mine += index == expert ? 1 : 0;
    if (expert == 0 && (index < 0 || index >= g.num_experts))
      ReportFault(fault, FaultKind::kExpertIndex, i / top_k, i % top_k, index, g.num_experts);
  }
  mine = BlockSum(mine);
  if (threadIdx.x == 0) g.counts[expert] = mine;
}

// One block an expert: finds its place behind the experts before it, its assignments in order, and cuts them into tiles of
// about equal size.
__global__ void __launch_bounds__(kGroupThreads) PlaceKernel(const int32_t* indices, const Grouping g) {
  BeginKernel();
  __shared__ int warp_counts[kGroupThreads / 32];
  const int expert = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  int rows_before = 0;
  int tiles_before = 0;
  for (int e = thread; e < expert; e += kGroupThreads) {
    rows_before += RowsOf(g.counts[e]);
    tiles_before += TilesOf(g.counts[e]);
  }
  const int begin = BlockSum(rows_before);
  __syncthreads();
  const int first_tile = BlockSum(tiles_before);
  const int count = g.counts[expert];
  const int num_tiles = TilesOf(count);
  for (int t = thread; t < num_tiles; t += kGroupThreads) {
    const int size = RowsOf((count + num_tiles - 1) / num_tiles);
    g.tiles[first_tile + t] = {expert, begin + t * size, min(size, count - t * size)};
  }
  int place = begin;
  for (int first = 0; first < g.num_assignments; first += kGroupThreads) {
    const int i = first + thread;
    const bool mine = i < g.num_assignments && indices[i] == expert;
    const unsigned found = __ballot_sync(kWholeWarp, mine);
    if (lane == 0) warp_counts[warp] = __popc(found);
    __syncthreads();
    int before = place;
    for (int w = 0; w < kGroupThreads / 32; ++w) {
      before += w < warp ? warp_counts[w] : 0;
      place += warp_counts[w];
    }
    if (mine) g.order[before + __popc(found & ((1U << lane) - 1U))] = i;
    __syncthreads();
  }
  const bool last = expert + 1 == g.num_experts;
  const int end = last ? g.max_rows : begin + RowsOf(count);
  for (int row = begin + count + thread; row < end; row += kGroupThreads) g.order[row] = -1;
  if (last && thread == 0) *g.num_tiles = first_tile + num_tiles;
}

Result<Grouping> Group(CudaContext& context, const ops::RoutedExpertsArgs& args) {
  const int64_t num_assignments = args.indices.num_elements();
  const auto num_experts = static_cast<int64_t>(args.experts.size());
  const int64_t used = std::min(num_assignments, num_experts);
  Grouping g = {};
  g.num_experts = static_cast<int>(num_experts);
  g.num_assignments = static_cast<int>(num_assignments);
  g.max_rows =
      static_cast<int>(CeilDiv(num_assignments + used * (kPackedRows - 1), kPackedRows) * kPackedRows);
  DSV4_ASSIGN_OR_RETURN(g.counts, context.Scratch<int32_t>(num_experts));
  DSV4_ASSIGN_OR_RETURN(g.order, context.Scratch<int32_t>(g.max_rows));
  DSV4_ASSIGN_OR_RETURN(g.tiles, context.Scratch<Tile>(num_assignments / kWgmmaTokens + used));
  DSV4_ASSIGN_OR_RETURN(g.num_tiles, context.Scratch<int32_t>(1));
  const auto blocks = static_cast<unsigned>(num_experts);
  const auto* const indices = args.indices.as<const int32_t>();
  context.Launch(CountKernel, blocks, kGroupThreads, 0, indices, static_cast<int>(args.indices.shape[1]), g,
                 context.fault());
  context.Launch(PlaceKernel, blocks, kGroupThreads, 0, indices, g);
  return g;
}

// --- Matrix products -------------------------------------------------------------------------------------------------

constexpr int kMatrices = 3;  // Of an expert in its table: gate, up, down.

struct Params {
  DeviceWeight shape;  // Of all these matrices.
  const DeviceWeight* weights;
  PackedRows x;
  Grouping grouping;
  int row_tiles;
  uint16_t* y;
  const float* routing;  // Gate and up: [num_assignments]; down: null.
  float limit;
};

__device__ __forceinline__ bool FindTile(const Params& p, int64_t i, int first_matrix, int second_matrix,
                                         int rows_per_tile, WgmmaItem& item) {
  if (i >= int64_t{*p.grouping.num_tiles} * p.row_tiles) return false;
  const Tile tile = p.grouping.tiles[i / p.row_tiles];
  const DeviceWeight& first = p.weights[tile.expert * kMatrices + first_matrix];
  const DeviceWeight& second = p.weights[tile.expert * kMatrices + second_matrix];
  item = {.data = {first.data, second.data},
          .scale = {first.scale, second.scale},
          .global_scale = {first.global_scale, second.global_scale},
          .first_row = static_cast<int>(i % p.row_tiles) * rows_per_tile,
          .row_end = static_cast<int>(p.shape.rows),
          .first_x_block = 0,
          .first_x_row = tile.begin,
          .num_tokens = tile.count};
  return true;
}

// Assignments of a tile's tokens and, where there are any, their routing weights.
__device__ __forceinline__ void NoteAssignments(const Params& p, const WgmmaItem& item,
                                                const WgmmaTokenNotes& notes, int lane) {
  for (int token = lane; token < item.num_tokens; token += 32) {
    const int32_t assignment = p.grouping.order[item.first_x_row + token];
    notes.labels[token] = assignment;
    if (p.routing != nullptr) notes.factors[token] = p.routing[assignment];
  }
}

// y: [packed rows, rows of a matrix], the activation of gate and up with the routing weight.
template <MatmulKind kKind>
__global__ void __launch_bounds__(kWgmmaThreads, 1) GateUpKernel(const __grid_constant__ Params p) {
  BeginKernel();
  constexpr int kRowsOfBoth = kWgmmaRows / 2;
  const auto store = [&]<int kTokens>(const WgmmaItem& item, const WgmmaTokenNotes& notes,
                                      float(&sums)[kTokens / 2], float4* own) {
    const int row = WgmmaWeights<kKind, WgmmaRows::kSameOfBoth>::Row(item, 0);
    const int lane = static_cast<int>(threadIdx.x) % 4;
    const bool odd = row % 2 != 0;
    // Rounded, and out of registers, since the activation is long and its loop is not unrolled.
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      own[j * kWgmmaConsumers] = make_float4(RoundToBf16(sums[4 * j]), RoundToBf16(sums[4 * j + 1]),
                                             RoundToBf16(sums[4 * j + 2]), RoundToBf16(sums[4 * j + 3]));
    }
    for (int j = 0; j * 8 < item.num_tokens; ++j) {
      const float4 rounded = own[j * kWgmmaConsumers];
      const auto activation = [&](int e, float gate, float up) {
        const int token = j * 8 + lane * 2 + e;
        const float routing = token < item.num_tokens ? notes.factors[token] : 0.0F;
        return Bf16FromFloat(
            static_cast<float>(ClampedSwiglu(static_cast<double>(gate), static_cast<double>(up),
                                             static_cast<double>(p.limit), static_cast<double>(routing))));
      };
      const uint16_t first = activation(0, rounded.x, rounded.z);
      const uint16_t second = activation(1, rounded.y, rounded.w);
      // Neighbours in the matrix exchange a token each, so that two rows are stored at once.
      const auto other = __shfl_xor_sync(kWholeWarp, static_cast<uint32_t>(odd ? first : second), 4);
      const uint32_t pair = odd ? other | static_cast<uint32_t>(second) << 16 : first | other << 16;
      const int token = j * 8 + lane * 2 + (odd ? 1 : 0);
      if (token < item.num_tokens) {
        *reinterpret_cast<uint32_t*>(p.y + (item.first_x_row + token) * p.shape.rows + row - (odd ? 1 : 0)) =
            pair;
      }
    }
  };
  const auto note = [&](const WgmmaItem& item, const WgmmaTokenNotes& notes, int lane) {
    NoteAssignments(p, item, notes, lane);
  };
  WgmmaTiles<kKind, WgmmaRows::kSameOfBoth>(
      p.shape, p.x, [&](int64_t i, WgmmaItem& item) { return FindTile(p, i, 0, 1, kRowsOfBoth, item); }, note,
      store);
}

// y: [num_assignments, rows of a matrix].
template <MatmulKind kKind>
__global__ void __launch_bounds__(kWgmmaThreads, 1) DownKernel(const __grid_constant__ Params p) {
  BeginKernel();
  const auto store = [&]<int kTokens>(const WgmmaItem& item, const WgmmaTokenNotes& notes,
                                      float(&sums)[kTokens / 2], float4*) {
    const int row = WgmmaWeights<kKind, WgmmaRows::kNeighbours>::Row(item, 0);
    const int lane = static_cast<int>(threadIdx.x) % 4;
    if (row >= item.row_end) return;
#pragma unroll
    for (int i = 0; i < kTokens / 4; ++i) {
      const int token = i / 2 * 8 + lane * 2 + i % 2;
      if (token >= item.num_tokens) continue;
      const int64_t assignment = notes.labels[token];
      *reinterpret_cast<uint32_t*>(p.y + assignment * p.shape.rows + row) =
          Bf16FromFloat(sums[i / 2 * 4 + i % 2]) |
          static_cast<uint32_t>(Bf16FromFloat(sums[i / 2 * 4 + i % 2 + 2])) << 16;
    }
  };
  const auto note = [&](const WgmmaItem& item, const WgmmaTokenNotes& notes, int lane) {
    NoteAssignments(p, item, notes, lane);
  };
  WgmmaTiles<kKind, WgmmaRows::kNeighbours>(
      p.shape, p.x, [&](int64_t i, WgmmaItem& item) { return FindTile(p, i, 2, 2, kWgmmaRows, item); }, note,
      store);
}

template <MatmulKind kKind>
void LaunchGateUp(CudaContext& context, const Params& params, unsigned blocks) {
  context.Launch(GateUpKernel<kKind>, blocks, kWgmmaThreads, sizeof(WgmmaMemory<kKind>), params);
}
template <MatmulKind kKind>
void LaunchDown(CudaContext& context, const Params& params, unsigned blocks) {
  context.Launch(DownKernel<kKind>, blocks, kWgmmaThreads, sizeof(WgmmaMemory<kKind>), params);
}

}  // namespace

bool HasExpertsWgmma(const ExpertTable& table, const ops::RoutedExpertsArgs& args) {
  return args.x.shape[0] >= kMinWgmmaTokens && args.x.dtype == DType::kBF16 && table.alike &&
         FitsWgmma(table.w1) && FitsWgmma(table.w2) && table.w1.rows % (kWgmmaRows / 2) == 0 &&
         table.w2.rows % 2 == 0 && args.indices.num_elements() < int64_t{1} << 24 &&
         CanPack(args.x.data, args.x.dtype, args.x.shape[1], args.x.shape[1]);
}

Status ExpertsWgmma(CudaContext& context, const ExpertTable& table, const ops::RoutedExpertsArgs& args,
                    uint16_t* rows) {
  const int64_t dim = args.x.shape[1];
  const int64_t width = table.w1.rows;
  DSV4_ASSIGN_OR_RETURN_STATUS(const Grouping grouping, Group(context, args));
  const auto blocks = static_cast<unsigned>(context.queue().num_processors());

  DSV4_ASSIGN_OR_RETURN_STATUS(uint16_t* const hidden, context.Scratch<uint16_t>(grouping.max_rows * width));
  const RowSource tokens = {.x = args.x.data,
                            .dtype = args.x.dtype,
                            .stride = dim,
                            .num_rows = grouping.max_rows,
                            .origins = grouping.order,
                            .divisor = static_cast<int>(args.indices.shape[1])};
  Params params = {.shape = table.w1,
                   .weights = table.weights,
                   .x = {},
                   .grouping = grouping,
                   .row_tiles = static_cast<int>(width / (kWgmmaRows / 2)),
                   .y = hidden,
                   .routing = args.weights.as<const float>(),
                   .limit = args.limit};
  DSV4_ASSIGN_OR_RETURN_STATUS(params.x, Pack(context, tokens, dim, table.w1.quantized_x, table.w1.kind));
  WithMmaKind(table.w1.kind, [&]<MatmulKind kKind>() { LaunchGateUp<kKind>(context, params, blocks); });

  const RowSource activations = {.x = hidden,
                                 .dtype = DType::kBF16,
                                 .stride = width,
                                 .num_rows = grouping.max_rows,
                                 .origins = grouping.order,
                                 .divisor = 0};
  params.shape = table.w2;
  params.row_tiles = static_cast<int>(CeilDiv(dim, kWgmmaRows));
  params.y = rows;
  params.routing = nullptr;
  DSV4_ASSIGN_OR_RETURN_STATUS(params.x,
                               Pack(context, activations, width, table.w2.quantized_x, table.w2.kind));
  WithMmaKind(table.w2.kind, [&]<MatmulKind kKind>() { LaunchDown<kKind>(context, params, blocks); });
  return {};
}

}  // namespace dsv4::backend::cuda
