#include <algorithm>
#include <cstdlib>

#include "backend/cuda/kernels/device_fault.cuh"
#include "backend/cuda/kernels/grid_barrier.cuh"
#include "backend/cuda/kernels/routed_experts_joint.h"
#include "backend/cuda/kernels/routed_experts_stream.h"
#include "backend/cuda/kernels/swiglu.cuh"
#include "backend/cuda/kernels/warp_stream.cuh"

namespace dsv4::backend::cuda {
namespace {

// One block a processor. Weights of down are under way while the blocks meet.
constexpr int kStages = 4;
// Row tiles of one matrix whose sums are added at once.
constexpr int kItemsAtOnce = 24;

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
};

// A row tile of a matrix.
struct Item {
  StreamTile tile;
  int x;  // Where its activations begin in shared memory, in elements.
};

using ItemSums = SegmentSums[kSegments];

// How many items a block has, and how many of them are gate's and up's: those of a pair of tiles follow each other, and behind
// them those of down, all experts of a tile in ascending order.
struct Work {
  int num_pairs;
  int num_tiles;
  int items;
  int gate_up_items;
};
__host__ __device__ __forceinline__ Work WorkOf(int block, int num_blocks, int pairs, int tiles, int top_k) {
  const auto share = [&](int count) {
    return block < count ? (count - block + num_blocks - 1) / num_blocks : 0;
  };
  const int num_pairs = share(pairs);
  const int num_tiles = share(tiles);
  return {num_pairs, num_tiles, 2 * num_pairs + num_tiles * top_k, 2 * num_pairs};
}

// Elements of the largest activations, rows of a launch's one token.
__host__ __device__ __forceinline__ int RowElements(int dim, int width, int top_k) {
  const auto x = static_cast<int>(StreamRow(dim));
  const auto hidden = top_k * static_cast<int>(StreamRow(width));
  return x > hidden ? x : hidden;
}

// Grid: blocks of a token, tokens.
template <StreamKind kKind>
__global__ void __launch_bounds__(kStreamThreads, 1) ExpertsKernel(const __grid_constant__ Params p) {
  constexpr MatmulKind kFormat = FormatOf(kKind);
  const int block = static_cast<int>(blockIdx.x);
  const int num_blocks = static_cast<int>(gridDim.x);
  const int64_t token = blockIdx.y;
  const int t = static_cast<int>(threadIdx.x);
  const int tiles_of_width = p.width / kTileRows;
  const Work work = WorkOf(block, num_blocks, tiles_of_width * p.top_k, p.dim / kTileRows, p.top_k);
  const int items_at_once = max(kItemsAtOnce, p.top_k);

  extern __shared__ __align__(16) unsigned char shared[];
  auto& ring = reinterpret_cast<WarpRing<kStages>*>(shared)[t / 32];
  auto* const rows = reinterpret_cast<uint16_t*>(shared + kStreamWarps * sizeof(WarpRing<kStages>));
  auto* const sums = reinterpret_cast<ItemSums*>(rows + RowElements(p.dim, p.width, p.top_k));
  auto* const items = reinterpret_cast<Item*>(sums + items_at_once);
  __shared__ int experts[kMaxTopK];  // By slot.
  __shared__ int slots[kMaxTopK];    // By rank: ascending experts.
  __shared__ float routing[kMaxTopK];
  __shared__ float global_scales[kMaxTopK][3];  // By slot: of w1, w3, w2.

  WaitForKernelsBefore();
  if (t < p.top_k) {
    int expert = p.indices[token * p.top_k + t];
    if (expert < 0 || expert >= p.num_experts) {
      // Some other takes its place.
      if (block == 0) ReportFault(p.fault, FaultKind::kExpertIndex, token, t, expert, p.num_experts);
      expert = 0;
    }
    experts[t] = expert;
    routing[t] = p.routing[token * p.top_k + t];
  }
  __syncthreads();
  if (t < p.top_k) {
    int rank = 0;
    for (int other = 0; other < p.top_k; ++other)
      rank += experts[other] < experts[t] || (experts[other] == experts[t] && other < t) ? 1 : 0;
    slots[rank] = t;
  }
  if (t < 3 * p.top_k) global_scales[t / 3][t % 3] = p.weights[experts[t / 3] * 3 + t % 3].global_scale;
  __syncthreads();
  const auto hidden_stride = static_cast<int>(StreamRow(p.width));
  for (int i = t; i < work.items; i += kStreamThreads) {
    const bool is_down = i >= work.gate_up_items;
    const int mine = is_down ? (i - work.gate_up_items) / p.top_k : i / 2;
    const int number = block + mine * num_blocks;  // Of the pair or tile.
    const int slot = is_down ? slots[i - work.gate_up_items - mine * p.top_k] : number / tiles_of_width;
    const int64_t row = (is_down ? number : number - slot * tiles_of_width) * kTileRows;
    const StreamShape& shape = is_down ? p.down : p.gate_up;
    const DeviceWeight& weight = p.weights[experts[slot] * 3 + (is_down ? 2 : i % 2)];
    items[i] = {{weight.data + row * shape.row_bytes,
                 static_cast<const uint8_t*>(weight.scale) + row * shape.scale_row_bytes},
                is_down ? slot * hidden_stride : 0};
  }
  __syncthreads();

  const auto shape_of = [&](int i) -> const StreamShape& {
    return i >= work.gate_up_items ? p.down : p.gate_up;
  };
  const auto tile_of = [&](int i) { return items[i].tile; };
  WarpReader<kStages, true, decltype(tile_of), decltype(shape_of)> reader(ring, work.items, tile_of,
                                                                          shape_of);
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) reader.Load();

  auto* const hidden = p.hidden + token * p.top_k * p.width;
  const bool exists = t % 32 / 4 == 0;  // The token of mma's first column.
  uint32_t slot = 0;
  int current = FirstItemOfWarp();
#pragma unroll 1
  for (int first = 0; first < work.items;) {
    const bool is_down = first >= work.gate_up_items;
    const StreamShape& shape = shape_of(first);
    if (first == work.gate_up_items) {
      // The others' hidden rows are needed, and this block's are there.
      MeetBlocks(&p.barriers[token], static_cast<uint32_t>(num_blocks));
      LetNextKernelStart();
    }
    if (first == 0 || first == work.gate_up_items) {
      const uint16_t* const from = is_down ? hidden : p.x + token * p.dim;
      const int cols = is_down ? p.width : p.dim;
      LoadStreamRows<kStreamThreads>(rows, nullptr, is_down ? p.top_k : 1, cols,
                                     is_down ? p.down_form : p.gate_up_form,
                                     [&](int row) { return from + row * cols; });
      __syncthreads();
    }
    const int at_once = is_down ? items_at_once / p.top_k * p.top_k : items_at_once;
    const int end = min(is_down ? work.items : work.gate_up_items, first + at_once);
#pragma unroll 1
    for (; current < end; current += kItemStep) {
      float segment[4] = {};
      MultiplyWarpSegment<kKind, kStages>(ring, slot, reader, shape, rows + items[current].x, exists, {},
                                          segment);
      StoreSegmentSums(sums[current - first], 1, segment);
    }
    __syncthreads();
    const int step = is_down ? p.top_k : 2;
    for (int i = t; i < (end - first) / step * kTileRows; i += kStreamThreads) {
      const int row = i % kTileRows;
      const ItemSums* const of = sums + i / kTileRows * step;
      const auto row_sum = [&](int item, float global_scale) {
        return RoundToBf16(SumSegments<kFormat>(of[item], 1, 0, row, shape, global_scale));
      };
      const int number =
          block + ((first - (is_down ? work.gate_up_items : 0)) / step + i / kTileRows) * num_blocks;
      if (is_down) {
        float total = 0.0F;
        for (int rank = 0; rank < p.top_k; ++rank) total += row_sum(rank, global_scales[slots[rank]][2]);
        p.y[token * p.dim + number * kTileRows + row] = total;
      } else {
        const int of_slot = number / tiles_of_width;
        const float gate = row_sum(0, global_scales[of_slot][0]);
        const float up = row_sum(1, global_scales[of_slot][1]);
        hidden[of_slot * p.width + (number - of_slot * tiles_of_width) * kTileRows + row] =
            Bf16FromFloat(static_cast<float>(ClampedSwiglu(static_cast<double>(gate), static_cast<double>(up),
                                                           static_cast<double>(p.limit),
                                                           static_cast<double>(routing[of_slot]))));
      }
    }
    __syncthreads();
    first = end;
  }
  // Blocks without a tile of down are waited for too.
  if (work.num_tiles == 0) MeetBlocks(&p.barriers[token], static_cast<uint32_t>(num_blocks));
}

__device__ GridBarrier dev_barriers[kNumGridBarriers];

template <StreamKind kKind>
bool Launch(CudaContext& context, const Params& params, dim3 grid, size_t shared_bytes) {
  const uint64_t launch =
      context.queue().Launch(ExpertsKernel<kKind>, grid, kStreamThreads, shared_bytes, params);
  context.queue().NoteReader(launch, {});
  return true;
}

}  // namespace

Result<bool> JoinedExperts(CudaContext& context, const ExpertTable& table,
                           const ops::RoutedExpertsArgs& args) {
  const StreamKind kind = StreamKindOf(table.w1);
  const auto num_tokens = static_cast<int>(args.x.shape[0]);
  const auto top_k = static_cast<int>(args.indices.shape[1]);
  if (!IsFp4(kind) || StreamKindOf(table.w2) != kind || num_tokens > kNumGridBarriers) return false;
  static GridBarrier* const barriers = [] {
    void* p = nullptr;
    cudaGetSymbolAddress(&p, dev_barriers);
    return static_cast<GridBarrier*>(p);
  }();
  if (getenv("DSV4_NO_JOINT") != nullptr) return false;
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
                         .fault = context.fault()};
  const int pairs = params.width / kTileRows * top_k;
  const int tiles = params.dim / kTileRows;
  const int num_blocks =
      std::min(std::max(1, context.queue().num_processors() / num_tokens), std::max(pairs, tiles));
  // The first block has most.
  const Work work = WorkOf(0, num_blocks, pairs, tiles, top_k);
  const size_t shared_bytes =
      kStreamWarps * sizeof(WarpRing<kStages>) +
      static_cast<size_t>(RowElements(params.dim, params.width, top_k)) * sizeof(uint16_t) +
      static_cast<size_t>(std::max(kItemsAtOnce, top_k)) * sizeof(ItemSums) +
      static_cast<size_t>(work.items) * sizeof(Item);
  const dim3 grid(static_cast<unsigned>(num_blocks), static_cast<unsigned>(num_tokens));
  return kind == StreamKind::kNvFp4 ? Launch<StreamKind::kNvFp4>(context, params, grid, shared_bytes)
                                    : Launch<StreamKind::kMxFp4>(context, params, grid, shared_bytes);
}

}  // namespace dsv4::backend::cuda
