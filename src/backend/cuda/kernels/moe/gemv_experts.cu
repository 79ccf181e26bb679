// routed_experts of a few tokens as two GEMV launches, for formats that the joint launch does not take.
#include <algorithm>

#include "backend/cuda/device/numeric/swiglu.cuh"
#include "backend/cuda/kernels/gemm/gemv_tiles.cuh"
#include "backend/cuda/kernels/moe/chosen_experts.cuh"
#include "backend/cuda/kernels/moe/gemv_experts.h"

namespace dsv4::backend::cuda {
namespace {

// 36 KB of weights that a block has in flight, of three an SM: widening four bits wants many warps.
constexpr int kStages = 2;
constexpr int kBlocks = 3;

struct Params {
  StreamShape shape;  // Shape of the matrices that this launch reads.
  StreamForms forms;  // One.
  int rows;
  int cols;
  const DeviceWeight* weights;  // w1, w3, w2 of every expert.
  const int32_t* indices;       // [num_tokens, top_k]
  const float* routing;         // [num_tokens, top_k]
  const uint16_t* x;            // Gate and up: [num_tokens, dim]. Down: [num_tokens, top_k, width].
  int64_t x_stride;             // Between rows.
  void* y;                      // Gate and up: bf16 [num_tokens, top_k, width]. Down: f32 [num_tokens, dim].
  int num_experts;
  int top_k;
  float limit;
  // Gate and up: bytes of each chosen w2, of data and of scales, that are asked for ahead.
  uint32_t next_data_bytes;
  uint32_t next_scale_bytes;
  Fault* fault;
};

__device__ __forceinline__ int ExpertOf(const Params& p, int64_t token, int slot) {
  return ChosenExpert(p.indices, token, p.top_k, slot, p.num_experts, p.fault);
}

// Pieces of `num_bytes` at `data`, every num_threads-th one from number `thread` on, are asked for in L2.
__device__ __forceinline__ void PrefetchShare(const uint8_t* data, uint32_t num_bytes, uint32_t thread,
                                              uint32_t num_threads) {
  constexpr uint32_t kPiece = 4096;
  for (uint32_t i = thread; i * kPiece < num_bytes; i += num_threads)
    PrefetchToL2(data + i * kPiece, min(kPiece, num_bytes - i * kPiece));
}

// Both matrices of a row tile one after the other, then the activation of what they gave. Grid: blocks,
// tokens.
template <StreamKind kKind>
__global__ void __launch_bounds__(kMatmulThreads, kBlocks)
    GemvExpertsGateUpKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto& ring = *reinterpret_cast<StreamRing<kStages>*>(shared);
  auto* const shared_x = reinterpret_cast<uint16_t*>(shared + sizeof(ring));
  __shared__ StreamMatrix matrices[kMaxTopK][3];  // Gate, up, and down for the launch behind this one.
  static_assert(3 * kMaxTopK <= kMatmulThreads);
  __shared__ float routing[kMaxTopK];
  WaitForKernelsBefore();
  const int64_t token = blockIdx.y;
  const int width = p.rows;
  const int num_tiles = (width + kTileRows - 1) / kTileRows;
  const int num_pairs = num_tiles * p.top_k;
  const int num_blocks = static_cast<int>(gridDim.x);
  const int block = static_cast<int>(blockIdx.x);
  const int t = static_cast<int>(threadIdx.x);
  if (t < 3 * p.top_k) {
    matrices[t / 3][t % 3] = MatrixOf(p.weights[ExpertOf(p, token, t / 3) * 3 + t % 3]);
    routing[t / 3] = p.routing[token * p.top_k + t / 3];
  }
  __syncthreads();
  auto* const hidden = static_cast<uint16_t*>(p.y) + token * p.top_k * width;
  // Sums that the pairs gave, until all are done: the activation takes its time, and then is computed for all
  // at once.
  const int rounds = (num_pairs - block + num_blocks - 1) / num_blocks;
  const auto groups = static_cast<int>(StreamGroups(p.cols));
  auto* const results = reinterpret_cast<float2*>(shared_x + StreamRow(p.cols));
  auto* const x_scales = reinterpret_cast<float*>(results + rounds * kTileRows);
  float* const fp8_scales = x_scales + groups;
  const auto item = [&](int i) {
    const int pair = block + i / 2 * num_blocks;
    return ItemOf(p.shape, matrices[pair / num_tiles][i % 2], pair % num_tiles * kTileRows, shared_x,
                  x_scales);
  };
  StreamItems<kStages, kKind>(
      ring, fp8_scales, p.shape.scale_cols, 2 * rounds, 1, {1, 0, groups}, item,
      [&] {
        LoadFp8Scales(fp8_scales, p.shape.scale_cols, 2 * rounds, item);
        LoadStreamRows(shared_x, x_scales, 1, p.cols, p.forms, [&](int) { return p.x + token * p.x_stride; });
        // Memory has time beside the widening of four bits, and only here is it known early which experts
        // come next.
        for (int slot = t / 32; slot < p.top_k; slot += kMatmulThreads / 32) {
          const auto lane = static_cast<uint32_t>(t % 32 * num_blocks + block);
          const auto lanes = static_cast<uint32_t>(num_blocks * 32);
          PrefetchShare(matrices[slot][2].data, p.next_data_bytes, lane, lanes);
          PrefetchShare(matrices[slot][2].scale, p.next_scale_bytes, lane, lanes);
        }
        __syncthreads();
      },
      [&](int i, const StreamItem&, int, int row, float sum) {
        float2& result = results[i / 2 * kTileRows + row % kTileRows];
        (i % 2 == 0 ? result.x : result.y) = RoundToBf16(sum);
      });
  __syncthreads();
  for (int i = t; i < rounds * kTileRows; i += kMatmulThreads) {
    const int pair = block + i / kTileRows * num_blocks;
    const int row = pair % num_tiles * kTileRows + i % kTileRows;
    if (row >= width) continue;
    const int slot = pair / num_tiles;
    hidden[slot * width + row] = Bf16FromFloat(
        static_cast<float>(ClampedSwiglu(static_cast<double>(results[i].x), static_cast<double>(results[i].y),
                                         static_cast<double>(p.limit), static_cast<double>(routing[slot]))));
  }
}

// A row tile of all of a token's experts in ascending order, and their sum. Grid: blocks, tokens.
template <StreamKind kKind>
__global__ void __launch_bounds__(kMatmulThreads, kBlocks)
    GemvExpertsDownKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto& ring = *reinterpret_cast<StreamRing<kStages>*>(shared);
  auto* const shared_x = reinterpret_cast<uint16_t*>(shared + sizeof(ring));
  __shared__ StreamMatrix matrices[kMaxTopK];
  __shared__ int experts[kMaxTopK];
  __shared__ int slots[kMaxTopK];  // By rank.
  WaitForKernelsBefore();
  const int64_t token = blockIdx.y;
  const int dim = p.rows;
  const int num_tiles = (dim + kTileRows - 1) / kTileRows;
  const int num_blocks = static_cast<int>(gridDim.x);
  const int block = static_cast<int>(blockIdx.x);
  const int t = static_cast<int>(threadIdx.x);
  if (t < p.top_k) experts[t] = ExpertOf(p, token, t);
  __syncthreads();
  if (t < p.top_k) {
    const int rank = RankOfSlot(experts, p.top_k, t);
    slots[rank] = t;
    matrices[rank] = MatrixOf(p.weights[experts[t] * 3 + 2]);
  }
  __syncthreads();
  const int x_stride = static_cast<int>(StreamRow(p.cols));
  const auto groups = static_cast<int>(StreamGroups(p.cols));
  auto* const x_scales = reinterpret_cast<float*>(shared_x + p.top_k * x_stride);
  float* const fp8_scales = x_scales + p.top_k * groups;
  const int num_items = p.top_k * ((num_tiles - block + num_blocks - 1) / num_blocks);
  const auto item = [&](int i) {
    const int rank = i % p.top_k;
    return ItemOf(p.shape, matrices[rank], (block + i / p.top_k * num_blocks) * kTileRows,
                  shared_x + slots[rank] * x_stride, x_scales + slots[rank] * groups);
  };
  float total = 0.0F;
  StreamItems<kStages, kKind>(
      ring, fp8_scales, p.shape.scale_cols, num_items, p.top_k, {1, 0, groups}, item,
      [&] {
        LoadFp8Scales(fp8_scales, p.shape.scale_cols, num_items, item);
        LoadStreamRows(shared_x, x_scales, p.top_k, p.cols, p.forms,
                       [&](int slot) { return p.x + (token * p.top_k + slot) * p.x_stride; });
        __syncthreads();
      },
      [&](int i, const StreamItem&, int, int row, float sum) {
        const int rank = i % p.top_k;
        total = (rank == 0 ? 0.0F : total) + RoundToBf16(sum);
        if (rank == p.top_k - 1) static_cast<float*>(p.y)[token * dim + row] = total;
      });
}

template <StreamKind kKind>
void LaunchGateUp(LaunchContext& context, const Params& params, dim3 grid, size_t shared_bytes) {
  context.Launch(GemvExpertsGateUpKernel<kKind>, grid, kMatmulThreads, shared_bytes, params);
}
template <StreamKind kKind>
void LaunchDown(LaunchContext& context, const Params& params, dim3 grid, size_t shared_bytes) {
  context.Launch(GemvExpertsDownKernel<kKind>, grid, kMatmulThreads, shared_bytes, params);
}

// As many blocks as run at once, each with as many pieces of work as the others, for each token.
// `shared_bytes`: of a block, as far as it is known; an SM has as much as one block may have, and a little
// more.
dim3 Grid(LaunchContext& context, int64_t pieces, int64_t num_tokens, size_t shared_bytes) {
  const auto of_sm = std::clamp<int64_t>(
      static_cast<int64_t>(context.limits().shared_bytes / (shared_bytes + size_t{1} * 1024)), 1, kBlocks);
  const int64_t max_blocks = std::max<int64_t>(1, context.limits().num_sms * of_sm / num_tokens);
  return {static_cast<unsigned>(CeilDiv(pieces, CeilDiv(pieces, max_blocks))),
          static_cast<unsigned>(num_tokens)};
}

size_t ScaleBytes(const StreamShape& shape) { return static_cast<size_t>(shape.scale_cols) * sizeof(float); }

}  // namespace

Status GemvExperts(LaunchContext& context, const ExpertTable& table, const ops::RoutedExpertsArgs& args) {
  const int64_t num_tokens = args.x.shape[0];
  const int64_t top_k = args.indices.shape[1];
  const int64_t width = table.w1.rows;
  DSV4_ASSIGN_OR_RETURN_STATUS(uint16_t* const hidden, context.Scratch<uint16_t>(num_tokens * top_k * width));
  constexpr size_t kRingBytes = sizeof(StreamRing<kStages>);
  // Down's weights, as far as the cache holds them beside what passes through it.
  constexpr int64_t kMaxAheadBytes = int64_t{32} << 20;
  const StreamShape down = ShapeOf(table.w2);
  const int64_t share = kMaxAheadBytes / (num_tokens * top_k);
  const int64_t data_bytes = std::min(share / 4096 * 4096, table.w2.rows * down.row_bytes);
  const int64_t scale_bytes = table.w2.rows * down.scale_row_bytes;
  Params params = {
      .shape = ShapeOf(table.w1),
      .forms = FormsOf(table.w1),
      .rows = static_cast<int>(width),
      .cols = static_cast<int>(table.w1.cols),
      .weights = table.weights,
      .indices = args.indices.as<const int32_t>(),
      .routing = args.weights.as<const float>(),
      .x = args.x.as<const uint16_t>(),
      .x_stride = args.x.shape[1],
      .y = hidden,
      .num_experts = static_cast<int>(args.experts.size()),
      .top_k = static_cast<int>(top_k),
      .limit = args.limit,
      .next_data_bytes = static_cast<uint32_t>(data_bytes),
      .next_scale_bytes = static_cast<uint32_t>(data_bytes + scale_bytes <= share ? scale_bytes : 0),
      .fault = context.fault()};
  const int64_t pairs = CeilDiv(width, kTileRows) * top_k;
  const dim3 pair_grid =
      Grid(context, pairs, num_tokens, kRingBytes + StreamRowsBytes(table.w1.cols, 1) + size_t{4} * 1024);
  const auto rounds = static_cast<size_t>(CeilDiv(pairs, pair_grid.x));
  ForStreamKind(params.shape.kind, [&]<StreamKind kKind>() {
    LaunchGateUp<kKind>(context, params, pair_grid,
                        kRingBytes + StreamRowsBytes(table.w1.cols, 1) + rounds * kTileRows * sizeof(float2) +
                            StreamScalesBytes(table.w1.cols, 1) + 2 * rounds * ScaleBytes(params.shape));
  });
  params.shape = ShapeOf(table.w2);
  params.forms = FormsOf(table.w2);
  params.rows = static_cast<int>(table.w2.rows);
  params.cols = static_cast<int>(table.w2.cols);
  params.x = hidden;
  params.x_stride = width;
  params.y = args.y.data;
  ForStreamKind(params.shape.kind, [&]<StreamKind kKind>() {
    const int64_t tiles = CeilDiv(table.w2.rows, kTileRows);
    const dim3 grid = Grid(context, tiles, num_tokens,
                           kRingBytes + StreamRowsBytes(table.w2.cols, top_k) + size_t{1} * 1024);
    LaunchDown<kKind>(context, params, grid,
                      kRingBytes + StreamRowsBytes(table.w2.cols, top_k) +
                          StreamScalesBytes(table.w2.cols, top_k) +
                          static_cast<size_t>(CeilDiv(tiles, grid.x) * top_k) * ScaleBytes(params.shape));
  });
  return {};
}

}  // namespace dsv4::backend::cuda
