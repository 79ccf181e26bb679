#include <algorithm>
#include <memory>

#include "backend/cuda/kernels/chosen_experts.cuh"
#include "backend/cuda/kernels/grid_barrier.cuh"
#include "backend/cuda/kernels/memory_range.h"
#include "backend/cuda/kernels/routed_experts_joint.h"
#include "backend/cuda/kernels/routed_experts_stream.h"
#include "backend/cuda/kernels/swiglu.cuh"
#include "backend/cuda/kernels/warp_stream.cuh"

namespace dsv4::backend::cuda {
namespace {

// One block a processor. Weights of what comes next are under way while the blocks meet.
constexpr int kStages = 4;
// Row tiles whose sums are added at once.
constexpr int kItemsAtOnce = 24;

// A linear of one token that has nothing to do with the experts; none without rows.
struct Linear {
  StreamShape shape;
  StreamForms form;  // One.
  int rows;
  int cols;
  const uint8_t* data;
  const uint8_t* scale;
  const uint16_t* x;
  void* y;
  float global_scale;
  bool y_is_bf16;
};

struct Params {
  StreamShape gate_up;
  StreamShape down;
  StreamForms gate_up_form;  // One each.
  StreamForms down_form;
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
  GridBarrier* barriers;  // A token's blocks meet.
  Fault* fault;
  Linear linear;
};

// A row tile of a matrix.
struct Item {
  StreamTile tile;
  int x;  // Where its activations begin in shared memory, in elements.
};

using ItemSums = SegmentSums[kSegments];

// A block's items: gate's and up's, those of a pair of tiles one after the other; the linear's tiles; down's, all experts of a
// tile in ascending order. Numbers from which each kind begins, and of all.
struct Work {
  int linear;
  int down;
  int items;
};
__host__ __device__ __forceinline__ Work WorkOf(const Params& p, int block, int num_blocks) {
  const auto share = [&](int rows) {
    const int count = rows / kTileRows;
    return block < count ? (count - block + num_blocks - 1) / num_blocks : 0;
  };
  const int linear = 2 * share(p.width * p.top_k);
  const int down = linear + share(p.linear.rows);
  return {linear, down, down + share(p.dim) * p.top_k};
}

// Elements of the experts' activations, rows of one token: gate's and up's, or in their place down's.
__host__ __device__ __forceinline__ int RowElements(const Params& p) {
  const auto gate_up = static_cast<int>(StreamRow(p.dim));
  const auto down = p.top_k * static_cast<int>(StreamRow(p.width));
  return gate_up > down ? gate_up : down;
}

// num_rows of `cols` elements into shared memory. Not inlined, so that the second time finds its instructions in a cache.
__device__ __noinline__ void LoadRows(uint16_t* to, float* scales, const StreamForms& forms,
                                      const uint16_t* from, int num_rows, int cols) {
  LoadStreamRows<kStreamThreads>(to, scales, num_rows, cols, forms,
                                 [&](int row) { return from + row * cols; });
}

// Experts of kKind, a linear of that kind or FP8. Grid: blocks of a token, tokens.
template <StreamKind kKind>
__global__ void __launch_bounds__(kStreamThreads, 1) ExpertsKernel(const __grid_constant__ Params p) {
  const int block = static_cast<int>(blockIdx.x);
  const int num_blocks = static_cast<int>(gridDim.x);
  const int64_t token = blockIdx.y;
  const int t = static_cast<int>(threadIdx.x);
  const int tiles_of_width = p.width / kTileRows;
  const Work work = WorkOf(p, block, num_blocks);
  const int items_at_once = max(kItemsAtOnce, p.top_k);

  extern __shared__ __align__(16) unsigned char shared[];
  auto& ring = reinterpret_cast<WarpRing<kStages>*>(shared)[t / 32];
  auto* const rows = reinterpret_cast<uint16_t*>(shared + kStreamWarps * sizeof(WarpRing<kStages>));
  auto* const linear_row = rows + RowElements(p);
  auto* const sums = reinterpret_cast<ItemSums*>(linear_row + StreamRow(p.linear.cols));
  auto* const items = reinterpret_cast<Item*>(sums + items_at_once);
  auto* const x_scales = reinterpret_cast<float*>(items + work.items);  // Of the linear,
  float* const fp8_scales = x_scales + StreamGroups(p.linear.cols);     // and of its weights, by item.
  __shared__ int experts[kMaxTopK];                                     // By slot.
  __shared__ int slots[kMaxTopK];                                       // By rank: ascending experts.
  __shared__ float routing[kMaxTopK];
  __shared__ float global_scales[kMaxTopK][3];  // By slot: of w1, w3, w2.

  const int scale_cols = p.linear.shape.scale_cols;
  for (int i = t; i < (work.down - work.linear) * scale_cols; i += kStreamThreads) {
    const int row = (block + i / scale_cols * num_blocks) * kTileRows;
    fp8_scales[i] = LoadScale(p.linear.scale, p.linear.shape.scale_dtype,
                              (row >> p.linear.shape.block_rows_log2) * scale_cols + i % scale_cols);
  }
  WaitForKernelsBefore();
  // Activations are loaded while it is found out which weights they are for.
  int expert = 0;
  if (t < p.top_k) {
    expert = ChosenExpert(p.indices, token, p.top_k, t, p.num_experts, p.fault);
    routing[t] = p.routing[token * p.top_k + t];
  }
  LoadRows(rows, x_scales, p.gate_up_form, p.x + token * p.dim, 1, p.dim);
  if (t < p.top_k) experts[t] = expert;
  __syncthreads();
  if (t < p.top_k) slots[RankOfSlot(experts, p.top_k, t)] = t;
  if (t < 3 * p.top_k) global_scales[t / 3][t % 3] = p.weights[experts[t / 3] * 3 + t % 3].global_scale;
  const auto hidden_stride = static_cast<int>(StreamRow(p.width));
  const auto tile_at = [&](const StreamShape& shape, const void* data, const void* scale, int tile) {
    const int64_t row = int64_t{tile} * kTileRows;
    return StreamTile{static_cast<const uint8_t*>(data) + row * shape.row_bytes,
                      static_cast<const uint8_t*>(scale) + row * shape.scale_row_bytes};
  };
  for (int i = t; i < work.items; i += kStreamThreads) {
    if (i < work.linear) {
      const int pair = block + i / 2 * num_blocks;
      const DeviceWeight& weight = p.weights[experts[pair / tiles_of_width] * 3 + i % 2];
      items[i] = {tile_at(p.gate_up, weight.data, weight.scale, pair % tiles_of_width), 0};
    } else if (i < work.down) {
      items[i] = {
          tile_at(p.linear.shape, p.linear.data, p.linear.scale, block + (i - work.linear) * num_blocks), 0};
    } else {
      const int mine = (i - work.down) / p.top_k;
      const int slot = SlotOfRank(experts, p.top_k, i - work.down - mine * p.top_k);
      const DeviceWeight& weight = p.weights[experts[slot] * 3 + 2];
      items[i] = {tile_at(p.down, weight.data, weight.scale, block + mine * num_blocks),
                  slot * hidden_stride};
    }
  }
  if (work.down > work.linear) LoadRows(linear_row, x_scales, p.linear.form, p.linear.x, 1, p.linear.cols);
  __syncthreads();

  const auto shape_of = [&](int i) -> const StreamShape& {
    return i < work.linear ? p.gate_up : (i < work.down ? p.linear.shape : p.down);
  };
  const auto tile_of = [&](int i) { return items[i].tile; };
  WarpReader<kStages, true, decltype(tile_of), decltype(shape_of)> reader(ring, work.items, tile_of,
                                                                          shape_of);
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) reader.Load();

  auto* const hidden = p.hidden + token * p.top_k * p.width;
  const bool exists = t % 32 / 4 == 0;  // The token of mma's first column.
  uint32_t slot = 0;
  uint32_t left = 0;  // Of the barrier.
  int current = FirstItemOfWarp();
  int first = 0;
  // Gate and up; the linear; down.
#pragma unroll 1
  for (int phase = 0; phase < 3; ++phase) {
    const int phase_end = phase == 0 ? work.linear : (phase == 1 ? work.down : work.items);
    // This block's hidden rows are there; the others' are needed.
    if (phase == 1 && work.linear > 0) ArriveAtBarrier(&p.barriers[token]);
    if (phase == 2) {
      WaitForBlocks(&p.barriers[token], static_cast<uint32_t>(min(num_blocks, tiles_of_width * p.top_k)));
      left = LeaveBarrier(&p.barriers[token]);
      LetNextKernelStart();
    }
    if (first == phase_end) continue;
    if (phase == 2) {
      LoadRows(rows, x_scales, p.down_form, hidden, p.top_k, p.width);
      __syncthreads();
    }
    const uint16_t* const activations = phase == 1 ? linear_row : rows;
    const StreamShape& shape = shape_of(first);
    const int phase_begin = first;
    const int step = phase == 0 ? 2 : (phase == 1 ? 1 : p.top_k);  // Items of a result.
#pragma unroll 1
    while (first < phase_end) {
      const int end = min(phase_end, first + items_at_once / step * step);
#pragma unroll 1
      for (; current < end; current += kItemStep) {
        float segment[4] = {};
        WithStreamKind<kKind, StreamKind::kFp8>(shape.kind, [&]<StreamKind kOf>() {
          MultiplyWarpSegment<kOf, kStages>(
              ring, slot, reader, shape, activations + items[current].x, exists,
              {fp8_scales + (current - work.linear) * scale_cols, x_scales, x_scales}, segment);
        });
        StoreSegmentSums(sums[current - first], 1, segment);
      }
      __syncthreads();
      for (int i = t; i < (end - first) / step * kTileRows; i += kStreamThreads) {
        const int row = i % kTileRows;
        const ItemSums* const of = sums + i / kTileRows * step;
        const auto row_sum = [&](int item, float global_scale) {
          float sum = 0.0F;
          WithStreamKind<kKind, StreamKind::kFp8>(shape.kind, [&]<StreamKind kOf>() {
            sum = SumSegments<FormatOf(kOf)>(of[item], 1, 0, row, shape, global_scale);
          });
          return sum;
        };
        const int number = block + ((first - phase_begin) / step + i / kTileRows) * num_blocks;
        if (phase == 0) {
          const int of_slot = number / tiles_of_width;
          const float gate = RoundToBf16(row_sum(0, global_scales[of_slot][0]));
          const float up = RoundToBf16(row_sum(1, global_scales[of_slot][1]));
          hidden[of_slot * p.width + number % tiles_of_width * kTileRows + row] =
              Bf16FromFloat(static_cast<float>(
                  ClampedSwiglu(static_cast<double>(gate), static_cast<double>(up),
                                static_cast<double>(p.limit), static_cast<double>(routing[of_slot]))));
        } else if (phase == 1) {
          const float sum = row_sum(0, p.linear.global_scale);
          if (p.linear.y_is_bf16) {
            static_cast<uint16_t*>(p.linear.y)[number * kTileRows + row] = Bf16FromFloat(sum);
          } else {
            static_cast<float*>(p.linear.y)[number * kTileRows + row] = sum;
          }
        } else {
          float total = 0.0F;
          for (int rank = 0; rank < p.top_k; ++rank)
            total += RoundToBf16(row_sum(rank, global_scales[slots[rank]][2]));
          p.y[token * p.dim + number * kTileRows + row] = total;
        }
      }
      __syncthreads();
      first = end;
    }
  }
  CloseBarrier(&p.barriers[token], left, static_cast<uint32_t>(num_blocks));
}

using Kernel = void (*)(Params);
Kernel KernelOf(StreamKind kind) {
  return kind == StreamKind::kNvFp4 ? ExpertsKernel<StreamKind::kNvFp4> : ExpertsKernel<StreamKind::kMxFp4>;
}

// Launches params, or puts them in place of `before` (0: nothing): the launch's number, 0 if that is too late or all blocks
// cannot run at once.
uint64_t Launch(CudaContext& context, const Params& params, int num_tokens, uint64_t before) {
  const int rows = std::max({params.width * params.top_k, params.dim, params.linear.rows});
  const int num_blocks =
      std::min(std::max(1, context.queue().num_processors() / num_tokens), rows / kTileRows);
  const Work work = WorkOf(params, 0, num_blocks);  // The first block has most of each.
  const size_t shared_bytes =
      kStreamWarps * sizeof(WarpRing<kStages>) +
      static_cast<size_t>(RowElements(params) + StreamRow(params.linear.cols)) * sizeof(uint16_t) +
      static_cast<size_t>(std::max(kItemsAtOnce, params.top_k)) * sizeof(ItemSums) +
      static_cast<size_t>(work.items) * sizeof(Item) + StreamScalesBytes(params.linear.cols, 1) +
      static_cast<size_t>((work.down - work.linear) * params.linear.shape.scale_cols) * sizeof(float);
  const dim3 grid(static_cast<unsigned>(num_blocks), static_cast<unsigned>(num_tokens));
  const Kernel kernel = KernelOf(params.gate_up.kind);
  if (!context.queue().RunsAtOnce(reinterpret_cast<const void*>(kernel), grid.x * grid.y, kStreamThreads,
                                  shared_bytes)) {
    return 0;
  }
  const uint64_t launch =
      context.queue().LaunchInPlaceOf(before, kernel, grid, kStreamThreads, shared_bytes, params);
  context.queue().NoteReader(launch, {});
  return launch;
}

}  // namespace

// A launch that the next linear may join.
struct OpenExperts {
  uint64_t launch = 0;
  Params params;
};

Result<bool> JoinedExperts(CudaContext& context, const ExpertTable& table,
                           const ops::RoutedExpertsArgs& args) {
  context.open_experts() = nullptr;
  const StreamKind kind = StreamKindOf(table.w1);
  const auto num_tokens = static_cast<int>(args.x.shape[0]);
  const auto top_k = static_cast<int>(args.indices.shape[1]);
  if (!IsFp4(kind) || StreamKindOf(table.w2) != kind || num_tokens > kNumGridBarriers) return false;
  DSV4_ASSIGN_OR_RETURN(GridBarrier* const barriers, context.GridBarriers());
  const int64_t width = table.w1.rows;
  DSV4_ASSIGN_OR_RETURN(uint16_t* const hidden, context.Scratch<uint16_t>(num_tokens * top_k * width));
  const Params params = {.gate_up = ShapeOf(table.w1),
                         .down = ShapeOf(table.w2),
                         .gate_up_form = FormsOf(table.w1),
                         .down_form = FormsOf(table.w2),
                         .dim = static_cast<int>(table.w2.rows),
                         .width = static_cast<int>(width),
                         .weights = table.weights,
                         .indices = args.indices.as<const int32_t>(),
                         .routing = args.weights.as<const float>(),
                         .x = args.x.as<const uint16_t>(),
                         .hidden = hidden,
                         .y = static_cast<float*>(args.y.data),
                         .num_experts = static_cast<int>(args.experts.size()),
                         .top_k = top_k,
                         .limit = args.limit,
                         .barriers = barriers,
                         .fault = context.fault(),
                         .linear = {}};
  const uint64_t launch = Launch(context, params, num_tokens, 0);
  if (launch != 0 && num_tokens == 1)
    context.open_experts() = std::make_shared<OpenExperts>(OpenExperts{launch, params});
  return launch != 0;
}

bool LinearJoinsExperts(CudaContext& context, const StreamLinearArgs& args) {
  const std::shared_ptr<OpenExperts> open = std::move(context.open_experts());
  context.open_experts() = nullptr;
  if (open == nullptr || args.num_groups != 1 || args.num_tokens != 1 ||
      !context.queue().IsLastLaunch(open->launch)) {
    return false;
  }
  Params params = open->params;
  const StreamKind kind = StreamKindOf(args.weight);
  if (kind != params.gate_up.kind && kind != StreamKind::kFp8) return false;
  // All of a launch runs at once: what the linear reads may be nothing that the experts write, what it writes nothing that they
  // read or write.
  const auto bytes = [](const void* data, int64_t size) {
    return MemoryRange{data, static_cast<size_t>(size)};
  };
  const MemoryRange x = bytes(args.x, args.weight.cols * 2);
  const MemoryRange y = bytes(args.y, args.rows_per_group * (args.y_is_bf16 ? 2 : 4));
  const MemoryRange hidden = bytes(params.hidden, int64_t{params.top_k} * params.width * 2);
  const MemoryRange sum = bytes(params.y, int64_t{params.dim} * 4);
  for (const MemoryRange& written : {hidden, sum}) {
    if (Overlap(x, written) || Overlap(y, written)) return false;
  }
  for (const MemoryRange& read :
       {bytes(params.x, int64_t{params.dim} * 2), bytes(params.indices, params.top_k * 4),
        bytes(params.routing, params.top_k * 4)}) {
    if (Overlap(y, read)) return false;
  }
  params.linear = {.shape = ShapeOf(args.weight),
                   .form = FormsOf(args.weight),
                   .rows = static_cast<int>(args.rows_per_group),
                   .cols = static_cast<int>(args.weight.cols),
                   .data = args.weight.data,
                   .scale = static_cast<const uint8_t*>(args.weight.scale),
                   .x = args.x,
                   .y = args.y,
                   .global_scale = args.weight.global_scale,
                   .y_is_bf16 = args.y_is_bf16};
  return Launch(context, params, 1, open->launch) != 0;
}

}  // namespace dsv4::backend::cuda
