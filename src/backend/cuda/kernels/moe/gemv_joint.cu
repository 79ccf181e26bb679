// routed_experts of FP4 for a few tokens in one launch, together with the shared expert's down projection.
#include <algorithm>
#include <cstddef>

#include "backend/cuda/device/numeric/swiglu.cuh"
#include "backend/cuda/device/sync/grid_barrier.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/device/sync/stage_times.cuh"
#include "backend/cuda/kernels/gemm/gemv_rows.cuh"
#include "backend/cuda/kernels/gemm/gemv_tma_tiles.cuh"
#include "backend/cuda/kernels/gemm/gemv_units.cuh"
#include "backend/cuda/kernels/moe/chosen_experts.cuh"
#include "backend/cuda/kernels/moe/gemv_joint.h"
#include "backend/cuda/lowering/select/experts.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

// One block an SM.
constexpr int kMostStages = 8;
constexpr int kMostOfBatch = 32;                              // A lane asks for an item,
constexpr int kMostOfTopK = static_cast<int>(kMaxJointTopK);  // and has a slot.
// Bytes of the kernel's named shared variables.
constexpr size_t kNamedBytes = size_t{4} * 1024;
// Row tiles whose sums are added at once.
constexpr int kItemsAtOnce = 24;

// A linear of the same tokens that has nothing to do with the experts; none without tiles. All blocks of all tokens share its tiles, so
// its weights are read once.
struct Linear {
  int cols;
  int num_tokens;
  int64_t y_stride;
  const uint8_t* data;
  const uint8_t* scale;
  const uint16_t* x;  // [num_tokens, cols]
  void* y;
  float global_scale;
  bool y_is_bf16;
};

// Parts of a launch: the linear, whose weights are known before anything else is; gate and up; down.
enum Part : uint8_t { kLinear, kGateUp, kDown };
constexpr int kNumParts = 3;

// Items, row tiles of a matrix, come in batches that are copied together. A round's sums are added together.
struct PartShape {
  StreamShape shape;
  StreamForm form;
  int tiles;     // Tiles of results, which the blocks share.
  int step;      // Items of a result, which follow each other: one; gate's and up's; all experts', ascending.
  int of_batch;  // Items.
  int of_round;  // Items, whole results.
};

struct Params {
  int dim;
  int width;
  const DeviceWeight* weights;  // w1, w3, w2 of every expert.
  const int32_t* indices;       // [num_tokens, top_k]
  const float* routing;         // [num_tokens, top_k]
  const uint16_t* x;            // [num_tokens, dim]
  uint16_t* hidden;             // [num_tokens, top_k, width], this launch's own.
  float* y;                     // [num_tokens, dim]
  int num_experts;
  int top_k;
  float limit;
  int stages;  // Batches that a block has in flight,
  int stage_bytes;
  int items_of_sums;      // that a round has at most.
  int items_at;           // In shared memory.
  GridBarrier* barriers;  // A token's blocks meet.
  Fault* fault;
  Linear linear;
  PartShape parts[kNumParts];  // Last (ClearPadding).
};
static_assert(offsetof(Params, parts) + sizeof(Params::parts) == sizeof(Params));

struct Item {
  StreamTile tile;
  int x;  // Offset of its activations in shared memory, in elements.
};

using ItemSums = SegmentSums[kSegments];

__host__ __device__ __forceinline__ int ItemsOfBlock(const PartShape& part, int block, int num_blocks) {
  return block < part.tiles ? (part.tiles - block + num_blocks - 1) / num_blocks * part.step : 0;
}

// Elements of activations: a token's for gate and up, behind them the linear's of all tokens; or instead the
// token's for down.
__host__ __device__ __forceinline__ int RowElements(const Params& p) {
  const int before_down = static_cast<int>(StreamRow(p.dim) + p.linear.num_tokens * StreamRow(p.linear.cols));
  const auto down = p.top_k * static_cast<int>(StreamRow(p.width));
  return before_down > down ? before_down : down;
}

// A block among those that share the linear, which are all of the launch.
__device__ __forceinline__ int BlockOfAll() { return static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x); }
__device__ __forceinline__ int NumOfAll() { return static_cast<int>(gridDim.y * gridDim.x); }

// Loads num_rows of `cols` elements into shared memory, by the threads that multiply. Not inlined, so that
// the second call finds its instructions in a cache. The form is by value, because a reference into a
// launch's arguments is slow to read.
__device__ __noinline__ void LoadRows(uint16_t* to, float* scales, StreamForm form, const uint16_t* from,
                                      int num_rows, int cols) {
  ForStreamRows<kStreamThreads>(
      num_rows, cols, [&](int row) { return from + row * cols; },
      [&](int row, int chunk, uint4 x) { StoreInForm(to, scales, row, chunk, cols, form, x); });
}

// Shared memory of a block's threads.
struct Known {
  uint64_t full[kMostStages];
  uint64_t empty[kMostStages];
  uint64_t listed;  // The last arrival has come.
  int num_items[kNumParts];
  int experts[kMostOfTopK];  // By slot.
  int slots[kMostOfTopK];    // By rank: ascending experts.
  float routing[kMostOfTopK];
  float global_scales[kMostOfTopK][3];  // By slot: of w1, w3, w2.
};

__device__ __forceinline__ StreamTile TileAt(const StreamShape& shape, const void* data, const void* scale,
                                             int tile) {
  const int64_t row = int64_t{tile} * kTileRows;
  return {static_cast<const uint8_t*>(data) + row * shape.row_bytes,
          static_cast<const uint8_t*>(scale) + row * shape.scale_row_bytes};
}

// Line `line` of the experts' table, into L2. Their places are the first that is read when experts are chosen.
__device__ __forceinline__ void AskForTable(const Params& p, int line) {
  constexpr int kLine = 128;
  const auto* const at = reinterpret_cast<const char*>(p.weights) + int64_t{line} * kLine;
  if (line * kLine < p.num_experts * 3 * static_cast<int>(sizeof(DeviceWeight)))
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

// Asks for all batches of the block in order, by one warp.
__device__ __forceinline__ void BringWeights(const Params& p, Known& known, Item* items,
                                             unsigned char* stages) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int block = static_cast<int>(blockIdx.x);
  const int num_blocks = static_cast<int>(gridDim.x);
  const int64_t token = blockIdx.y;
  const uint64_t policy = EvictFirst();
  float weight = 0.0F;
  // Work that is wanted first where gate and up are added up. It is done once, when the first weights are in
  // flight, before a wait for a stage that is free only behind that sum.
  const auto list = [&] {
    if (lane < p.top_k) {
      known.routing[lane] = weight;
      known.slots[RankOfSlot(known.experts, p.top_k, lane)] = lane;
    }
    for (int i = lane; i < 3 * p.top_k; i += 32) {
      const int slot = i / 3;
      known.global_scales[slot][i - slot * 3] =
          p.weights[known.experts[slot] * 3 + i - slot * 3].global_scale;
    }
    __syncwarp();
    if (lane == 0) Arrive(&known.listed);
  };
  StagePlace stage{.parity = 1};  // All are empty.
#pragma unroll 1
  for (int part = 0; part < kNumParts; ++part) {
    const PartShape& of = p.parts[part];
    const int num_items = known.num_items[part];
    if (part == kLinear) {
      for (int i = lane; i < num_items; i += 32)
        items[i] = {TileAt(of.shape, p.linear.data, p.linear.scale, BlockOfAll() + i * NumOfAll()), 0};
    } else if (part == kGateUp) {
      AskForTable(p, BlockOfAll() * 32 + lane);
      WaitForKernelsBefore();
      if (lane < p.top_k) {
        weight = p.routing[token * p.top_k + lane];
        known.experts[lane] = ChosenExpert(p.indices, token, p.top_k, lane, p.num_experts, p.fault);
      }
      __syncwarp();
      const int tiles_of_width = p.width / kTileRows;
      for (int i = lane; i < num_items; i += 32) {
        int tile = block + i / 2 * num_blocks;
        int slot = 0;
        for (; tile >= tiles_of_width; ++slot) tile -= tiles_of_width;
        const DeviceWeight& of_expert = p.weights[known.experts[slot] * 3 + i % 2];
        items[i] = {TileAt(of.shape, of_expert.data, of_expert.scale, tile), 0};
      }
    } else {
      const auto hidden_stride = static_cast<int>(StreamRow(p.width));
      for (int i = lane; i < num_items; i += 32) {
        const int mine = i / p.top_k;
        const int slot = known.slots[i - mine * p.top_k];
        const DeviceWeight& of_expert = p.weights[known.experts[slot] * 3 + 2];
        items[i] = {TileAt(of.shape, of_expert.data, of_expert.scale, block + mine * num_blocks),
                    slot * hidden_stride};
      }
    }
    __syncwarp();
    int asked = 0;  // Batches of the part.
    const int tile_bytes = TileBytes(of.shape);
#pragma unroll 1
    for (int first = 0; first < num_items; first += of.of_round) {
      const int end = min(num_items, first + of.of_round);
#pragma unroll 1
      for (int batch = first; batch < end; batch += of.of_batch) {
        const int count = min(of.of_batch, end - batch);
        if (part == kGateUp && asked++ == kItemStep) list();
        WaitForPhase(&known.empty[stage.i], stage.parity);
        if (lane == 0) ArriveAndAnnounce(&known.full[stage.i], static_cast<uint32_t>(count * tile_bytes));
        __syncwarp();
        if (lane < count) {
          CopyTile(stages + stage.i * p.stage_bytes + lane * tile_bytes, items[batch + lane].tile, of.shape,
                   &known.full[stage.i], policy);
        }
        stage.Next(p.stages);
      }
    }
    if (part == kGateUp && asked <= kItemStep) list();
    items += num_items;
  }
}

// Experts of kKind, a linear of that kind or FP8. Grid: blocks of a token, tokens.
template <StreamKind kKind>
__global__ void __launch_bounds__(kWholeTileThreads, 1) GemvJointKernel(const __grid_constant__ Params p) {
  const int block = static_cast<int>(blockIdx.x);
  const int num_blocks = static_cast<int>(gridDim.x);
  const int64_t token = blockIdx.y;
  const int t = static_cast<int>(threadIdx.x);
  const int lane = t % 32;
  const int tiles_of_width = p.width / kTileRows;
  const int scale_cols = p.parts[kLinear].shape.scale_cols;
  MarkStage(Stage::kBegin);

  extern __shared__ __align__(kTileAlignment) unsigned char shared[];  // Stages.
  auto* const rows = reinterpret_cast<uint16_t*>(shared + p.stages * p.stage_bytes);
  auto* const linear_rows = rows + StreamRow(p.dim);
  auto* const sums = reinterpret_cast<ItemSums*>(rows + RowElements(p));  // Two rounds'.
  auto* const spread = reinterpret_cast<SpreadScales*>(sums + 2 * p.items_of_sums);
  // Scales of the linear's activations,
  auto* const x_scales = reinterpret_cast<float*>(spread + kStreamWarps);
  const auto x_groups = static_cast<int>(StreamGroups(p.linear.cols));
  float* const fp8_scales = x_scales + p.linear.num_tokens * x_groups;  // and of its weights, by item.
  auto* const items = reinterpret_cast<Item*>(shared + p.items_at);     // Items of all parts.
  __shared__ Known known;

  if (t >= kStreamThreads) {
    if (lane < p.stages) {
      InitBarrier(&known.full[lane], 1);
      InitBarrier(&known.empty[lane], kSegments);
    }
    if (lane == 0) InitBarrier(&known.listed, 1);
    PublishBarriers();
    if (lane < kNumParts) {
      known.num_items[lane] = lane == kLinear ? ItemsOfBlock(p.parts[lane], BlockOfAll(), NumOfAll())
                                              : ItemsOfBlock(p.parts[lane], block, num_blocks);
    }
  }
  __syncthreads();
  if (t >= kStreamThreads) return BringWeights(p, known, items, shared);
  const int* const num_items = known.num_items;
  for (int i = t; i < num_items[kLinear] * scale_cols; i += kStreamThreads) {
    const int row = (BlockOfAll() + i / scale_cols * NumOfAll()) * kTileRows;
    fp8_scales[i] =
        LoadBlockScale(p.parts[kLinear].shape, p.linear.scale,
                       (row >> p.parts[kLinear].shape.block_rows_log2) * scale_cols + i % scale_cols);
  }
  MarkStage(Stage::kAsked);
  WaitForKernelsBefore();
  MarkStage(Stage::kInput);
  LoadRows(rows, x_scales, p.parts[kGateUp].form, p.x + token * p.dim, 1, p.dim);
  if (num_items[kLinear] > 0)
    LoadRows(linear_rows, x_scales, p.parts[kLinear].form, p.linear.x, p.linear.num_tokens, p.linear.cols);
  MeetThreads<kStreamThreads>();
  MarkStage(Stage::kReady);

  auto* const hidden = p.hidden + token * p.top_k * p.width;
  uint32_t left = 0;  // The barrier's.
  StagePlace stage;   // The next batch's.
  int begin = 0;      // First of the part's items.
  ItemSums* round_sums = sums;
#pragma unroll 1
  for (int part = 0; part < kNumParts; ++part) {
    const PartShape& of = p.parts[part];
    const StreamShape& shape = of.shape;
    const StreamKind kind = shape.kind;
    const int block_units_log2 = shape.block_units_log2;
    const int of_batch = of.of_batch;
    const int part_items = num_items[part];
    if (part == kDown) {
      // This block's hidden rows are there; the others' are needed.
      if (num_items[kGateUp] > 0) ArriveAtBarrier<kStreamThreads>(&p.barriers[token]);
      WaitForBlocks<kStreamThreads>(&p.barriers[token],
                                    static_cast<uint32_t>(min(num_blocks, p.parts[kGateUp].tiles)));
      left = LeaveBarrier<kStreamThreads>(&p.barriers[token]);
      MarkStage(Stage::kMet);
      LetNextKernelStart();
      if (part_items > 0) {
        LoadRows(rows, x_scales, of.form, hidden, p.top_k, p.width);
        MeetThreads<kStreamThreads>();
      }
      MarkStage(Stage::kReadySecond);
    }
    const TileSegment segment = SegmentOf(shape);
    const int tile_bytes = TileBytes(shape);
    // Tokens are mma's columns: the linear's all, the experts' the block's own.
    const int tokens = part == kLinear ? p.linear.num_tokens : 1;
    const bool exists = lane / 4 < tokens;
    const uint16_t* const activations =
        part == kLinear ? linear_rows + lane / 4 * static_cast<int>(StreamRow(p.linear.cols)) : rows;
    const float* const x_scales0 = x_scales + min(lane % 4 * 2, tokens - 1) * x_groups;
    const float* const x_scales1 = x_scales + min(lane % 4 * 2 + 1, tokens - 1) * x_groups;
#pragma unroll 1
    for (int first = 0; first < part_items; first += of.of_round) {
      const int end = min(part_items, first + of.of_round);
      int turn = 0;
#pragma unroll 1
      for (int batch = first; batch < end; batch += of_batch, turn = turn + 1 == kItemStep ? 0 : turn + 1) {
        if (turn == FirstItemOfWarp()) {
          WaitForTiles(&known.full[stage.i], &known.empty[stage.i], stage.parity);
          const unsigned char* tile = shared + stage.i * p.stage_bytes;
          const int batch_end = min(end, batch + of_batch);
#pragma unroll 1
          for (int i = batch; i < batch_end; ++i, tile += tile_bytes) {
            float of_segment[1][4] = {};
            WithStreamKind<kKind, StreamKind::kFp8, StreamKind::kMxFp8>(kind, [&]<StreamKind kOf>() {
              MultiplyTile<kOf>(tile, segment, block_units_log2, activations + items[begin + i].x, exists,
                                {fp8_scales + i * scale_cols, x_scales0, x_scales1}, &spread[t / 32],
                                of_segment);
            });
            StoreSegmentSums(round_sums[(i - first) * tokens], tokens, of_segment[0]);
          }
          ArriveForWarp(&known.empty[stage.i]);
          if (part == kGateUp) MarkFirst(Stage::kFirst);
        }
        stage.Next(p.stages);
      }
      MeetThreads<kStreamThreads>();
      if (part != kLinear) {
        MarkStage(part == kGateUp ? Stage::kStreamed : Stage::kStreamedSecond);
        WaitForPhase(&known.listed, 0);
      }
      const auto row_sum = [&](int item, int token, int row, float global_scale) {
        float sum = 0.0F;
        WithStreamKind<kKind, StreamKind::kFp8, StreamKind::kMxFp8>(kind, [&]<StreamKind kOf>() {
          sum =
              SumSegments<FormatOf(kOf)>(round_sums[item * tokens], tokens, token, row, shape, global_scale);
        });
        return sum;
      };
      const int results = (end - first) / of.step;
      const int first_tile = block + first / of.step * num_blocks;
      if (part == kLinear) {
        for (int i = t; i < results * tokens * kTileRows; i += kStreamThreads) {
          const int token = i / kTileRows % tokens;
          const int item = i / (kTileRows * tokens);
          const float sum = row_sum(item, token, i % kTileRows, p.linear.global_scale);
          const int tile = BlockOfAll() + (first + item) * NumOfAll();
          const int64_t place = token * p.linear.y_stride + tile * kTileRows + i % kTileRows;
          if (p.linear.y_is_bf16) {
            static_cast<uint16_t*>(p.linear.y)[place] = Bf16FromFloat(sum);
          } else {
            static_cast<float*>(p.linear.y)[place] = sum;
          }
        }
      } else if (part == kGateUp) {
        // Neighbours have a row's gate and up.
        for (int i = t; i < results * kTileRows * 2; i += kStreamThreads) {
          const int result = i / (2 * kTileRows);
          const int row = i / 2 % kTileRows;
          const int pair = first_tile + result * num_blocks;
          const int slot = pair / tiles_of_width;
          const float mine =
              RoundToBf16(row_sum(result * 2 + i % 2, 0, row, known.global_scales[slot][i % 2]));
          const float up = __shfl_down_sync(0xFFFFFFFFU, mine, 1);
          if (i % 2 == 0) {
            hidden[slot * p.width + pair % tiles_of_width * kTileRows + row] =
                Bf16FromFloat(static_cast<float>(
                    ClampedSwiglu(static_cast<double>(mine), static_cast<double>(up),
                                  static_cast<double>(p.limit), static_cast<double>(known.routing[slot]))));
          }
        }
      } else {
        // An expert's rows each by a thread, instead of their first segment; then a token's.
        for (int i = t; i < (end - first) * kTileRows; i += kStreamThreads) {
          const int item = i / kTileRows;
          const int row = i % kTileRows;
          round_sums[item][0][row] =
              RoundToBf16(row_sum(item, 0, row, known.global_scales[known.slots[item % p.top_k]][2]));
        }
        MeetThreads<kStreamThreads>();
        for (int i = t; i < results * kTileRows; i += kStreamThreads) {
          const ItemSums* const terms = round_sums + i / kTileRows * p.top_k;
          float total = 0.0F;
          for (int rank = 0; rank < p.top_k; ++rank) total += terms[rank][0][i % kTileRows];
          p.y[token * p.dim + (first_tile + i / kTileRows * num_blocks) * kTileRows + i % kTileRows] = total;
        }
      }
      // The next round's sums go elsewhere, and the one's after it come behind its barrier.
      round_sums = round_sums == sums ? sums + p.items_of_sums : sums;
    }
    begin += part_items;
  }
  CloseBarrier<kStreamThreads>(&p.barriers[token], left, static_cast<uint32_t>(num_blocks));
  int64_t num_bytes = 0;
  for (int part = 0; part < kNumParts; ++part)
    num_bytes += int64_t{num_items[part]} * TileBytes(p.parts[part].shape);
  EndStages(StageKernel::kExperts, num_bytes);
}

using Kernel = void (*)(Params);
Kernel KernelOf(StreamKind kind) {
  if (kind == StreamKind::kMxFp4) return GemvJointKernel<StreamKind::kMxFp4>;
  return kind == StreamKind::kNvFp4 ? GemvJointKernel<StreamKind::kNvFp4>
                                    : GemvJointKernel<StreamKind::kMxFp4Stored>;
}

// How the items of each part are divided into batches and rounds, and how many batches fit beside all else. `num_blocks`: of a token.
size_t Divide(Params& p, int num_blocks, int num_tokens, size_t shared_bytes) {
  p.stage_bytes = 0;
  for (const PartShape& part : p.parts) {
    if (part.tiles > 0) p.stage_bytes = std::max(p.stage_bytes, TileBytes(part.shape));
  }
  int num_items = 0;
  p.items_of_sums = 0;
  for (PartShape& part : p.parts) {
    const bool is_linear = &part == &p.parts[kLinear];
    // The first block has most.
    const int items = ItemsOfBlock(part, 0, is_linear ? num_blocks * num_tokens : num_blocks);
    num_items += items;
    const int sums = is_linear ? std::max(p.linear.num_tokens, 1) : 1;  // Sums of an item.
    part.of_round = std::max(kItemsAtOnce / (part.step * sums), 1) * part.step;
    if (items == 0) continue;
    const int round = std::min(items, part.of_round);
    p.items_of_sums = std::max(p.items_of_sums, round * sums);
    // As many batches for every group of warps.
    const int most = std::min(p.stage_bytes / TileBytes(part.shape), kMostOfBatch);
    const int batches = static_cast<int>(CeilDiv(round, most * kItemStep)) * kItemStep;
    part.of_batch = static_cast<int>(CeilDiv(round, batches));
  }
  const int linear_items = ItemsOfBlock(p.parts[kLinear], 0, num_blocks * num_tokens);
  const size_t before_items =
      static_cast<size_t>(RowElements(p)) * sizeof(uint16_t) +
      2 * static_cast<size_t>(p.items_of_sums) * sizeof(ItemSums) + kStreamWarps * sizeof(SpreadScales) +
      CeilDiv(StreamScalesBytes(p.linear.cols, p.linear.num_tokens) +
                  static_cast<size_t>(linear_items * p.parts[kLinear].shape.scale_cols) * sizeof(float),
              alignof(Item)) *
          alignof(Item);
  const size_t others = before_items + static_cast<size_t>(num_items) * sizeof(Item);
  const auto left = static_cast<int64_t>(shared_bytes - kNamedBytes) - static_cast<int64_t>(others);
  p.stages = static_cast<int>(std::clamp<int64_t>(left / p.stage_bytes, 0, kMostStages));
  const size_t stages_bytes = static_cast<size_t>(p.stages) * static_cast<size_t>(p.stage_bytes);
  p.items_at = static_cast<int>(stages_bytes + before_items);
  return stages_bytes + others;
}

struct JointPlan {
  Params params;
  dim3 grid;
  size_t shared_bytes;
  Kernel kernel;
};
JointPlan PlanOf(const LaunchContext& context, const JointExpertsWork& experts, const LinearWork* linear) {
  JointPlan plan = {.params = {.dim = static_cast<int>(experts.w2.rows),
                               .width = static_cast<int>(experts.w1.rows),
                               .weights = experts.weights,
                               .indices = experts.indices,
                               .routing = experts.routing,
                               .x = experts.x,
                               .hidden = nullptr,
                               .y = experts.y,
                               .num_experts = experts.num_experts,
                               .top_k = experts.top_k,
                               .limit = experts.limit,
                               .stages = 0,
                               .stage_bytes = 0,
                               .items_of_sums = 0,
                               .items_at = 0,
                               .barriers = nullptr,
                               .fault = context.fault(),
                               .linear = {},
                               .parts = {}},
                    .grid = {},
                    .shared_bytes = 0,
                    .kernel = KernelOf(StreamKindOf(experts.w1))};
  Params& params = plan.params;
  params.parts[kLinear].step = 1;
  params.parts[kGateUp] = {.shape = ShapeOf(experts.w1),
                           .form = FormOf(experts.w1),
                           .tiles = params.width / kTileRows * params.top_k,
                           .step = 2,
                           .of_batch = 0,
                           .of_round = 0};
  params.parts[kDown] = {.shape = ShapeOf(experts.w2),
                         .form = FormOf(experts.w2),
                         .tiles = params.dim / kTileRows,
                         .step = params.top_k,
                         .of_batch = 0,
                         .of_round = 0};
  if (linear != nullptr) {
    params.parts[kLinear] = {.shape = ShapeOf(linear->weight),
                             .form = FormOf(linear->weight),
                             .tiles = static_cast<int>(linear->rows_per_group) / kTileRows,
                             .step = 1,
                             .of_batch = 0,
                             .of_round = 0};
    params.linear = {.cols = static_cast<int>(linear->weight.cols),
                     .num_tokens = static_cast<int>(linear->num_tokens),
                     .y_stride = linear->y_stride,
                     .data = linear->weight.data,
                     .scale = static_cast<const uint8_t*>(linear->weight.scale),
                     .x = linear->x,
                     .y = linear->y,
                     .global_scale = linear->weight.global_scale,
                     .y_is_bf16 = linear->y_is_bf16};
  }
  int tiles = 0;
  for (const PartShape& part : params.parts) tiles = std::max(tiles, part.tiles);
  const int num_blocks = std::min(std::max(1, context.limits().num_sms / experts.num_tokens), tiles);
  plan.grid = dim3(static_cast<unsigned>(num_blocks), static_cast<unsigned>(experts.num_tokens));
  plan.shared_bytes = Divide(params, num_blocks, experts.num_tokens, context.limits().shared_bytes);
  return plan;
}

}  // namespace

bool HoldsGemvJoint(LaunchContext& context, const JointExpertsWork& experts, const LinearWork* linear) {
  const JointPlan plan = PlanOf(context, experts, linear);
  return plan.params.stages >= kItemStep &&
         context.RunsAtOnce(reinterpret_cast<const void*>(plan.kernel), plan.grid.x * plan.grid.y,
                            kWholeTileThreads, plan.shared_bytes);
}

Status LaunchGemvJoint(LaunchContext& context, const JointExpertsWork& experts, const LinearWork* linear) {
  JointPlan plan = PlanOf(context, experts, linear);
  Params& params = plan.params;
  DSV4_ASSIGN_OR_RETURN_STATUS(params.barriers, context.GridBarriers());
  DSV4_ASSIGN_OR_RETURN_STATUS(
      params.hidden, context.Scratch<uint16_t>(int64_t{experts.num_tokens} * params.top_k * params.width));
  context.Launch(plan.kernel, plan.grid, kWholeTileThreads, plan.shared_bytes, params);
  return {};
}

}  // namespace dsv4::backend::cuda
