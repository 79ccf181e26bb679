// Grouped GEMV of experts for 9 to 64 tokens: an expert's weights stream past the few tokens that chose it.
#include <algorithm>

#include "backend/cuda/device/numeric/swiglu.cuh"
#include "backend/cuda/kernels/gemm/gemv_tiles.cuh"
#include "backend/cuda/kernels/moe/grouped_gemv_runs.h"
#include "backend/cuda/kernels/moe/grouped_gemv_stream.h"
#include "backend/cuda/lowering/select/experts.h"

namespace dsv4::backend::cuda {
namespace {

// 36 KB of weights that a block has in flight, of two an SM.
constexpr int kStages = 2;
constexpr int kBlocks = 2;
// The most row tiles of a block. They are enough that a few microseconds at its beginning do not matter, and
// few enough that blocks end at about one time.
constexpr int64_t kMaxPairRounds = 16;
constexpr int64_t kMaxDownRounds = 32;

struct Params {
  StreamShape shape;  // Shape of the matrices that this launch reads.
  StreamForms forms;  // One.
  int rows;
  int cols;
  int rounds;                   // Row tiles of a block.
  const DeviceWeight* weights;  // w1, w3, w2 of every expert.
  ExpertGroups groups;
  const float* routing;  // [num_assignments]
  const uint16_t* x;     // Gate and up: [num_tokens, dim]. Down: [num_assignments, width].
  int64_t x_stride;
  int x_divisor;  // The row of x of an assignment: assignment / x_divisor.
  uint16_t* y;    // [num_assignments, rows]
  float limit;
};

// Work of a block, and where its arrays lie behind the ring.
struct Block {
  ExpertTile tile;
  int first_tile;  // First row tile.
  int rounds;      // Row tiles; none: the block has nothing to do.
  int x_stride;
  int scale_groups;
  uint16_t* x;      // [tokens_per_tile, x_stride]
  float2* results;  // Gate and up: [tokens_per_tile, rounds * kTileRows]
  float* x_scales;  // [tokens_per_tile, scale_groups]
  float* fp8_scales;

  __device__ Block(const Params& p, unsigned char* behind_ring, bool has_results) {
    tile = p.groups.tiles[blockIdx.y];
    first_tile = static_cast<int>(blockIdx.x) * p.rounds;
    rounds = tile.count == 0 ? 0 : min(p.rounds, p.rows / kTileRows - first_tile);
    x_stride = static_cast<int>(StreamRow(p.cols));
    scale_groups = static_cast<int>(StreamGroups(p.cols));
    x = reinterpret_cast<uint16_t*>(behind_ring);
    results = reinterpret_cast<float2*>(x + p.groups.tokens_per_tile * x_stride);
    x_scales = reinterpret_cast<float*>(results +
                                        (has_results ? p.groups.tokens_per_tile * p.rounds * kTileRows : 0));
    fp8_scales = x_scales + p.groups.tokens_per_tile * scale_groups;
  }
};

size_t SharedBytes(const Params& p, int matrices, bool has_results) {
  const auto tokens = static_cast<size_t>(p.groups.tokens_per_tile);
  const auto rounds = static_cast<size_t>(p.rounds);
  return sizeof(StreamRing<kStages>) + StreamRowsBytes(p.cols, p.groups.tokens_per_tile) +
         (has_results ? tokens * rounds * kTileRows * sizeof(float2) : 0) +
         StreamScalesBytes(p.cols, p.groups.tokens_per_tile) +
         static_cast<size_t>(matrices) * rounds * static_cast<size_t>(p.shape.scale_cols) * sizeof(float);
}

// The tile's rows of x, and the scales of all its weights.
template <typename Item>
__device__ void Prepare(const Params& p, const Block& block, const int* assignments, int num_items,
                        Item&& item) {
  LoadFp8Scales(block.fp8_scales, p.shape.scale_cols, num_items, item);
  LoadStreamRows(block.x, block.x_scales, block.tile.count, p.cols, p.forms,
                 [&](int token) { return p.x + assignments[token] / p.x_divisor * p.x_stride; });
  __syncthreads();
}

// Matrices [first, first + kCount) of the tile's expert, and its assignments, for all threads of the block.
template <int kCount>
__device__ void FindExpert(const Params& p, const ExpertTile& tile, int first,
                           StreamMatrix (&matrices)[kCount], int (&assignments)[kMaxGemvTokensOfExpert]) {
  const int t = static_cast<int>(threadIdx.x);
  if (t < kCount) matrices[t] = MatrixOf(p.weights[tile.expert * 3 + first + t]);
  if (t >= 32 && t < 32 + tile.count) assignments[t - 32] = p.groups.order[tile.begin + t - 32];
  __syncthreads();
}

// Both matrices of a row tile one after the other, then the activation of what they gave. Grid: blocks that
// share a tile's rows, tiles.
template <StreamKind kKind>
__global__ void __launch_bounds__(kMatmulThreads, kBlocks)
    GroupedGemvStreamGateUpKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto& ring = *reinterpret_cast<StreamRing<kStages>*>(shared);
  __shared__ StreamMatrix matrices[2];
  __shared__ int assignments[kMaxGemvTokensOfExpert];
  WaitForKernelsBefore();
  const Block block(p, shared + sizeof(ring), true);
  if (block.rounds <= 0) return;
  FindExpert(p, block.tile, 0, matrices, assignments);
  const auto item = [&](int i) {
    return ItemOf(p.shape, matrices[i % 2], (block.first_tile + i / 2) * kTileRows, block.x, block.x_scales);
  };
  const int num_rows = block.rounds * kTileRows;
  const int first_row = block.first_tile * kTileRows;
  const int num_items = 2 * block.rounds;
  StreamItems<kStages, kKind>(
      ring, block.fp8_scales, p.shape.scale_cols, num_items, 1,
      {block.tile.count, block.x_stride, block.scale_groups}, item,
      [&] { Prepare(p, block, assignments, num_items, item); },
      [&](int i, const StreamItem&, int token, int row, float sum) {
        float2& result = block.results[token * num_rows + row - first_row];
        (i % 2 == 0 ? result.x : result.y) = RoundToBf16(sum);
      });
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < num_rows * block.tile.count; i += kMatmulThreads) {
    const int assignment = assignments[i / num_rows];
    const float2 result = block.results[i];
    p.y[static_cast<int64_t>(assignment) * p.rows + first_row + i % num_rows] =
        Bf16FromFloat(static_cast<float>(
            ClampedSwiglu(static_cast<double>(result.x), static_cast<double>(result.y),
                          static_cast<double>(p.limit), static_cast<double>(p.routing[assignment]))));
  }
}

// Grid: blocks that share a tile's rows, tiles.
template <StreamKind kKind>
__global__ void __launch_bounds__(kMatmulThreads, kBlocks)
    GroupedGemvStreamDownKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto& ring = *reinterpret_cast<StreamRing<kStages>*>(shared);
  __shared__ StreamMatrix matrices[1];
  __shared__ int assignments[kMaxGemvTokensOfExpert];
  WaitForKernelsBefore();
  const Block block(p, shared + sizeof(ring), false);
  if (block.rounds <= 0) return;
  FindExpert(p, block.tile, 2, matrices, assignments);
  const auto item = [&](int i) {
    return ItemOf(p.shape, matrices[0], (block.first_tile + i) * kTileRows, block.x, block.x_scales);
  };
  StreamItems<kStages, kKind>(
      ring, block.fp8_scales, p.shape.scale_cols, block.rounds, 1,
      {block.tile.count, block.x_stride, block.scale_groups}, item,
      [&] { Prepare(p, block, assignments, block.rounds, item); },
      [&](int, const StreamItem&, int token, int row, float sum) {
        p.y[static_cast<int64_t>(assignments[token]) * p.rows + row] = Bf16FromFloat(sum);
      });
}

// Row tiles of a block, so that there are some blocks for each that the device runs at once.
int64_t Rounds(LaunchContext& context, int64_t num_tiles, int64_t num_experts, int64_t most) {
  constexpr int64_t kBlocksAPlace = 4;
  const int64_t places = context.limits().num_sms * int64_t{kBlocks} * kBlocksAPlace;
  return std::clamp<int64_t>(num_tiles * num_experts / places, std::min<int64_t>(4, most), most);
}

template <typename Kernel>
void Launch(LaunchContext& context, Kernel kernel, const Params& params, size_t shared_bytes) {
  const dim3 grid(static_cast<unsigned>(CeilDiv(params.rows / kTileRows, params.rounds)),
                  static_cast<unsigned>(params.groups.max_tiles));
  context.Launch(kernel, grid, kMatmulThreads, shared_bytes, params);
}

}  // namespace

Status GroupedGemvStream(LaunchContext& context, const ExpertTable& table, const ExpertGroups& groups,
                         const ops::ExpertTermsArgs& args) {
  const int64_t num_assignments = args.indices.num_elements();
  const int64_t num_chosen = std::min(num_assignments, static_cast<int64_t>(args.experts.size()));
  const int64_t width = table.w1.rows;
  DSV4_ASSIGN_OR_RETURN_STATUS(uint16_t* const hidden, context.Scratch<uint16_t>(num_assignments * width));
  Params params = {.shape = ShapeOf(table.w1),
                   .forms = FormsOf(table.w1),
                   .rows = static_cast<int>(width),
                   .cols = static_cast<int>(table.w1.cols),
                   .rounds = static_cast<int>(Rounds(context, width / kTileRows, num_chosen, kMaxPairRounds)),
                   .weights = table.weights,
                   .groups = groups,
                   .routing = args.weights.as<const float>(),
                   .x = args.x.as<const uint16_t>(),
                   .x_stride = args.x.shape[1],
                   .x_divisor = static_cast<int>(args.indices.shape[1]),
                   .y = hidden,
                   .limit = args.limit};
  ForStreamKind(params.shape.kind, [&]<StreamKind kKind>() {
    Launch(context, GroupedGemvStreamGateUpKernel<kKind>, params, SharedBytes(params, 2, true));
  });
  params.shape = ShapeOf(table.w2);
  params.forms = FormsOf(table.w2);
  params.rows = static_cast<int>(table.w2.rows);
  params.cols = static_cast<int>(table.w2.cols);
  params.rounds = static_cast<int>(Rounds(context, table.w2.rows / kTileRows, num_chosen, kMaxDownRounds));
  params.routing = nullptr;
  params.x = hidden;
  params.x_stride = width;
  params.x_divisor = 1;
  params.y = args.terms.as<uint16_t>();
  ForStreamKind(params.shape.kind, [&]<StreamKind kKind>() {
    Launch(context, GroupedGemvStreamDownKernel<kKind>, params, SharedBytes(params, 1, false));
  });
  return {};
}

}  // namespace dsv4::backend::cuda
