// Gate and up with their activation are one launch, down is another. All row tiles of all chosen experts, one
// expert behind the other, are cut into as many runs as there are SMs. So all blocks begin once and end at
// about one time. Warps go through a run on their own. Weights of the next expert are in flight while the
// last one's tiles are multiplied. One warp more asks for whole tiles (gemv_tma_tiles.cuh), for down two at a
// time if there is room. Where three tiles do not fit, each warp asks for its segments (gemv_warps.cuh).
#include <algorithm>

#include "backend/cuda/device/numeric/swiglu.cuh"
#include "backend/cuda/device/ptx/generation.cuh"
#include "backend/cuda/device/sync/grid_barrier.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/gemm/gemv_rows.cuh"
#include "backend/cuda/kernels/gemm/gemv_tma_tiles.cuh"
#include "backend/cuda/kernels/gemm/gemv_units.cuh"
#include "backend/cuda/kernels/moe/grouped_gemv_runs.h"
#include "backend/cuda/lowering/select/linear.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kMostItems = 16;  // Items that a block has in flight where they come whole.

// Tiles multiplied at a time: kTiles row tiles that come together; 0: one, which does not come whole; kSmall:
// the same, where there is little shared memory.
constexpr int kSmall = -1;
template <int kTiles>
struct Items {
  static constexpr bool kWhole = kTiles > 0;
  static constexpr int kStages = kTiles == kSmall ? 1 : 3;  // Stages of warps that ask for themselves.
  static constexpr int kCount = kWhole ? kTiles : 1;
  static constexpr int kRows = kCount * kTileRows;
  static constexpr int kThreads = kWhole ? kWholeTileThreads : kStreamThreads;
  static constexpr size_t kSumsBytes = size_t{kTiles == kSmall ? 8 : (kWhole ? 16 : 24)} *
                                       1024;  // Sums of segments, until they are added; twice.
  static_assert(kRows % kTileRows == 0 && kStages > 0);
  // At a time, of each half of the warps.
  static_assert(kSumsBytes >= kItemStep * kMaxGemvTokens * kSegments * kCount * sizeof(SegmentSums));
};

struct Params {
  StreamShape shape;  // Shape of the matrices that this launch reads.
  StreamForms form;   // One.
  int rows;
  int cols;
  int max_spans;
  int stages;                   // Whole items in flight; 0: they do not come whole.
  const DeviceWeight* weights;  // w1, w3, w2 of every expert.
  ExpertGroups groups;
  const float* routing;  // [num_assignments]
  const uint16_t* x;     // Gate and up: [num_tokens, dim]. Down: [num_assignments, width].
  int x_divisor;         // The row of x of an assignment: assignment / x_divisor.
  uint16_t* y;           // [num_assignments, rows]
  float limit;
};

// Rows of one tile of assignments in a run: rows from first_row on, of which so many are kMatrices items.
template <int kMatrices>
struct alignas(16) Span {
  StreamTile matrices[kMatrices];  // From first_row on.
  float global_scales[kMatrices];
  int first_item;  // First of the block's items.
  int first_row;
  int count;  // Assignments'.
  int assignments[kMaxGemvTokens];
  float routing[kMaxGemvTokens];
};

// Tiles that have assignments: those in front.
template <int kThreads>
__device__ __forceinline__ int NumTiles(const ExpertGroups& groups) {
  int count = 0;
  for (int first = 0; first < groups.max_tiles; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    count += __syncthreads_count(i < groups.max_tiles && groups.tiles[i].count > 0 ? 1 : 0);
  }
  return count;
}

// Items from which this block's run begins, and its items; `spans` describes them, and what follows the last.
template <int kThreads, int kRows, int kMatrices>
__device__ __forceinline__ int FindSpans(const Params& p, Span<kMatrices>* spans, int* num_spans) {
  const int items_of_rows = p.rows / kRows;
  const int64_t num_items = int64_t{NumTiles<kThreads>(p.groups)} * items_of_rows;
  const auto begin = static_cast<int>(num_items * blockIdx.x / gridDim.x);
  const auto end = static_cast<int>(num_items * (blockIdx.x + 1) / gridDim.x);
  const int first_tile = begin / items_of_rows;
  *num_spans = begin == end ? 0 : (end - 1) / items_of_rows - first_tile + 1;
  const int t = static_cast<int>(threadIdx.x);
  if (t <= *num_spans) {
    Span<kMatrices>& span = spans[t];
    const int from = max(begin, (first_tile + t) * items_of_rows);
    span.first_item = (t == *num_spans ? end - begin : from - begin) * kMatrices;
    if (t < *num_spans) {
      const ExpertTile tile = p.groups.tiles[first_tile + t];
      span.first_row = (from - (first_tile + t) * items_of_rows) * kRows;
      span.count = tile.count;
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
        const StreamMatrix matrix = MatrixOf(p.weights[tile.expert * 3 + (kMatrices == 2 ? m : 2)]);
        span.matrices[m] = {matrix.data + static_cast<int64_t>(span.first_row) * p.shape.row_bytes,
                            matrix.scale + static_cast<int64_t>(span.first_row) * p.shape.scale_row_bytes};
        span.global_scales[m] = matrix.global_scale;
      }
      for (int i = 0; i < tile.count; ++i) {
        span.assignments[i] = p.groups.order[tile.begin + i];
        span.routing[i] = p.routing == nullptr ? 1.0F : p.routing[span.assignments[i]];
      }
    }
  }
  __syncthreads();
  return (end - begin) * kMatrices;
}

// Item i of the block, which is none before that of the last call with this `span`.
template <int kRows, int kMatrices>
__device__ __forceinline__ StreamTile TileOf(const Params& p, const Span<kMatrices>* spans, int i,
                                             int& span) {
  while (i >= spans[span + 1].first_item) ++span;
  const StreamTile& matrix = spans[span].matrices[kMatrices == 2 ? i % 2 : 0];
  const int64_t row = (i - spans[span].first_item) / kMatrices * kRows;
  return {matrix.data + row * p.shape.row_bytes, matrix.scale + row * p.shape.scale_row_bytes};
}

// Asks for the block's items in order, by one thread.
template <int kRows, int kMatrices>
__device__ __forceinline__ void BringItems(const Params& p, const Span<kMatrices>* spans, int num_items,
                                           unsigned char* stages, uint64_t* full, uint64_t* empty) {
  const uint64_t policy = EvictFirst();
  const int item_bytes = TileBytes(p.shape, kRows);
  int span = 0;
  StagePlace stage{.parity = 1};  // All are empty.
#pragma unroll 1
  for (int i = 0; i < num_items; ++i) {
    const StreamTile tile = TileOf<kRows>(p, spans, i, span);
    WaitForPhase(&empty[stage.i], stage.parity);
    ArriveAndAnnounce(&full[stage.i], static_cast<uint32_t>(item_bytes));
    CopyTile<kRows>(stages + stage.i * item_bytes, tile, p.shape, &full[stage.i], policy);
    stage.Next(p.stages);
  }
}

// Scales of a block: for each warp that spreads scales (MultiplyTile).
template <int kTiles>
__host__ __device__ __forceinline__ int NumSpread(const StreamShape& shape) {
  return kTiles == 1 && NeedsSpread(shape) ? kStreamWarps : 0;
}

template <StreamKind kKind, int kMatrices, int kTiles>
__device__ __forceinline__ void RunItems(const Params& p) {
  static_assert(kMatrices == 1 || kTiles <= 1);  // In which order sums lie.
  using Of = Items<kTiles>;
  constexpr bool kWhole = Of::kWhole;
  constexpr int kStages = Of::kStages;
  constexpr MatmulKind kFormat = FormatOf(kKind);
  const int t = static_cast<int>(threadIdx.x);
  extern __shared__ __align__(kTileAlignment) unsigned char all_shared[];
  auto* const shared = KeptShared(all_shared);
  using Rings = WarpRing<kStages>[kStreamWarps];
  constexpr int kSums = static_cast<int>(Of::kSumsBytes / sizeof(SegmentSums));
  const int item_bytes = TileBytes(p.shape, Of::kRows);
  auto* const sums = reinterpret_cast<SegmentSums*>(
      shared + (kWhole ? p.stages * item_bytes : static_cast<int>(sizeof(Rings))));
  auto* const spread = reinterpret_cast<SpreadScales*>(sums + 2 * kSums);
  auto* const spans = reinterpret_cast<Span<kMatrices>*>(spread + NumSpread<kTiles>(p.shape));
  auto* const x = reinterpret_cast<uint16_t*>(spans + p.max_spans);
  __shared__ uint64_t full_barriers[kMostItems];
  __shared__ uint64_t empty_barriers[kMostItems];
  auto* const full = KeptShared(full_barriers);
  auto* const empty = KeptShared(empty_barriers);
  if constexpr (kWhole) {
    if (t < p.stages) {
      InitBarrier(&full[t], 1);
      InitBarrier(&empty[t], kSegments);
    }
    if (t < 32) PublishBarriers();
  }
  // Down begins with weights while gate and up are not done. The groups of tokens were written two launches
  // ago, and all of their blocks have waited for it before they let this launch start.
  if constexpr (kMatrices == 2) WaitForKernelsBefore();
  int num_spans = 0;
  const int num_items = FindSpans<Of::kThreads, Of::kRows>(p, spans, &num_spans);

  if constexpr (kWhole) {
    if (t >= kStreamThreads) {
      if (t == kStreamThreads) BringItems<Of::kRows>(p, spans, num_items, shared, full, empty);
      return;
    }
  }
  int read_span = 0;
  const auto tile_of = [&](int i) { return TileOf<Of::kRows>(p, spans, i, read_span); };
  const auto shape_of = [&](int) -> const StreamShape& { return p.shape; };
  WarpReader<kStages, true, decltype(tile_of), decltype(shape_of)> reader(
      (*reinterpret_cast<Rings*>(shared))[t / 32], kWhole ? 0 : num_items, tile_of, shape_of);
  if constexpr (!kWhole) {
#pragma unroll 1
    for (int i = 0; i < kStages; ++i) reader.Load();
  }
  if constexpr (kMatrices == 1) WaitForKernelsBefore();

  const auto x_stride = static_cast<int>(StreamRow(p.cols));
  const int lane_token = t % 32 / 4;
  const TileSegment segment_at = SegmentOf<Of::kRows>(p.shape);
  int current = FirstItemOfWarp();
  StagePlace stage{.i = current};  // Whole items'.
  uint32_t slot = 0;               // Slot of the warp's own ring.
  int buffer = 0;
#pragma unroll 1
  for (int s = 0; s < num_spans; ++s) {
    const Span<kMatrices>& span = spans[s];
    const int count = span.count;
    const int items_at_once = kSums / (count * kSegments * Of::kCount) / 2 * 2;
    LoadStreamRows<kStreamThreads>(x, nullptr, count, p.cols, p.form, [&](int token) {
      return p.x + static_cast<int64_t>(span.assignments[token] / p.x_divisor) * p.cols;
    });
    MeetThreads<kStreamThreads>();
    const int span_end = spans[s + 1].first_item;
#pragma unroll 1
    for (int first = span.first_item; first < span_end; first += items_at_once) {
      const int end = min(span_end, first + items_at_once);
      SegmentSums* const batch = sums + buffer * kSums;
      buffer ^= 1;
#pragma unroll 1
      for (; current < end; current += kItemStep) {
        float segment[Of::kCount][4] = {};
        const uint16_t* const of_token = x + lane_token * x_stride;
        if constexpr (!kWhole) {
          MultiplyWarpSegment<kKind, kStages>((*reinterpret_cast<const Rings*>(shared))[t / 32], slot, reader,
                                              p.shape, of_token, lane_token < count, {}, segment[0]);
        } else {
          WaitForTiles(&full[stage.i], &empty[stage.i], stage.parity);
          MultiplyTile<kKind>(shared + stage.i * item_bytes, segment_at, 0, of_token, lane_token < count, {},
                              spread + t / 32, segment);
          ArriveForWarp(&empty[stage.i]);
          stage.Next(p.stages, kItemStep);
        }
#pragma unroll
        for (int k = 0; k < Of::kCount; ++k) {
          const int tile = (current - first) * Of::kCount + k;
          StoreSegmentSums(batch + tile * kSegments * count, count, segment[k]);
        }
      }
      if (end == num_items) LetNextKernelStart();
      // Sums are there; those of the batch before have been read.
      MeetThreads<kStreamThreads>();
      const int num_results = (end - first) / kMatrices * count * Of::kRows;
      for (int i = t; i < num_results; i += kStreamThreads) {
        const int row = i % kTileRows;
        const int token = i / kTileRows % count;
        const int tile = i / (kTileRows * count);
        const auto sum = [&](int matrix) {
          return SumSegments<kFormat>(batch + (tile * kMatrices + matrix) * kSegments * count, count, token,
                                      row, p.shape, span.global_scales[matrix]);
        };
        float result = sum(0);
        if constexpr (kMatrices == 2) {
          const float gate = RoundToBf16(result);
          const float up = RoundToBf16(sum(1));
          result = static_cast<float>(ClampedSwiglu(static_cast<double>(gate), static_cast<double>(up),
                                                    static_cast<double>(p.limit),
                                                    static_cast<double>(span.routing[token])));
        }
        const int row_of_all =
            span.first_row + (first - span.first_item) / kMatrices * Of::kRows + tile * kTileRows + row;
        p.y[static_cast<int64_t>(span.assignments[token]) * p.rows + row_of_all] = Bf16FromFloat(result);
      }
    }
  }
}

// kMatrices: 2, gate and up one after the other; 1, down. Grid: as many blocks as there are SMs.
template <StreamKind kKind, int kMatrices, int kTiles>
__global__ void __launch_bounds__(Items<kTiles>::kThreads, 1)
    GroupedGemvRunsKernel(const __grid_constant__ Params p) {
  if constexpr (kTiles != kSmall && !kIsHopperOrLater) {
    __trap();  // Never launched.
  } else {
    RunItems<kKind, kMatrices, kTiles>(p);
  }
}

template <StreamKind kKind, int kMatrices>
void Launch(LaunchContext& context, bool whole, Params& params) {
  const auto blocks = static_cast<unsigned>(context.limits().num_sms);
  params.max_spans = static_cast<int>(CeilDiv(params.groups.max_tiles, blocks)) + 3;
  const size_t other_bytes = static_cast<size_t>(params.max_spans) * sizeof(Span<kMatrices>) +
                             StreamRowsBytes(params.cols, params.groups.tokens_per_tile);
  const auto others_of = [&]<int kTiles>() {
    return 2 * Items<kTiles>::kSumsBytes + NumSpread<kTiles>(params.shape) * sizeof(SpreadScales) +
           other_bytes;
  };
  const auto launch = [&]<int kTiles>(size_t weights_bytes) {
    context.Launch(GroupedGemvRunsKernel<kKind, kMatrices, kTiles>, blocks, Items<kTiles>::kThreads,
                   weights_bytes + others_of.template operator()<kTiles>(), params);
  };
  // Whether so many row tiles at a time have room.
  const DeviceLimits& limits = context.limits();
  // Bytes of a block beside the kernel's named variables.
  const size_t most_bytes = limits.shared_bytes - size_t{3} * 1024;
  const auto launch_whole = [&]<int kTiles>() {
    using Of = Items<kTiles>;
    // One is multiplied by each half of the warps, and one, or of several tiles two, are on their way.
    constexpr size_t kLeastItems = kTiles > 1 ? 4 : 3;
    const auto item_bytes = static_cast<size_t>(TileBytes(params.shape, Of::kRows));
    const size_t others = others_of.template operator()<kTiles>();
    if (!whole || !limits.has_tma() || params.rows % Of::kRows != 0 ||
        others + kLeastItems * item_bytes > most_bytes) {
      return false;
    }
    params.stages = static_cast<int>(std::min<size_t>((most_bytes - others) / item_bytes, kMostItems));
    launch.template operator()<kTiles>(static_cast<size_t>(params.stages) * item_bytes);
    return true;
  };
  if constexpr (kMatrices == 1) {
    if (!NeedsSpread(params.shape) && launch_whole.template operator()<2>()) return;
  }
  if (launch_whole.template operator()<1>()) return;
  params.stages = 0;
  const auto launch_warps = [&]<int kTiles>() {
    launch.template operator()<kTiles>(WarpRingsBytes(Items<kTiles>::kStages));
  };
  if (limits.has_tma() &&
      WarpRingsBytes(Items<0>::kStages) + others_of.template operator()<0>() <= limits.shared_bytes) {
    launch_warps.template operator()<0>();
  } else {
    launch_warps.template operator()<kSmall>();
  }
}

template <StreamKind kKind>
void LaunchBoth(LaunchContext& context, bool whole, Params& gate_up, Params& down) {
  Launch<kKind, 2>(context, whole, gate_up);
  Launch<kKind, 1>(context, whole, down);
}

}  // namespace

Status GroupedGemvRuns(LaunchContext& context, const ExpertTable& table, const ExpertGroups& groups,
                       const ops::ExpertTermsArgs& args) {
  const int64_t width = table.w1.rows;
  DSV4_ASSIGN_OR_RETURN_STATUS(uint16_t* const hidden,
                               context.Scratch<uint16_t>(args.indices.num_elements() * width));
  Params gate_up = {.shape = ShapeOf(table.w1),
                    .form = FormsOf(table.w1),
                    .rows = static_cast<int>(width),
                    .cols = static_cast<int>(table.w1.cols),
                    .max_spans = 0,
                    .stages = 0,
                    .weights = table.weights,
                    .groups = groups,
                    .routing = args.weights.as<const float>(),
                    .x = args.x.as<const uint16_t>(),
                    .x_divisor = static_cast<int>(args.indices.shape[1]),
                    .y = hidden,
                    .limit = args.limit};
  Params down = gate_up;
  down.shape = ShapeOf(table.w2);
  down.form = FormsOf(table.w2);
  down.rows = static_cast<int>(table.w2.rows);
  down.cols = static_cast<int>(table.w2.cols);
  down.routing = nullptr;
  down.x = hidden;
  down.x_divisor = 1;
  down.y = args.terms.as<uint16_t>();
  if (gate_up.shape.kind == StreamKind::kMxFp4) {
    LaunchBoth<StreamKind::kMxFp4>(context, table.copied_in_bulk, gate_up, down);
  } else if (gate_up.shape.kind == StreamKind::kMxFp4Stored) {
    LaunchBoth<StreamKind::kMxFp4Stored>(context, table.copied_in_bulk, gate_up, down);
  } else {
    LaunchBoth<StreamKind::kNvFp4>(context, table.copied_in_bulk, gate_up, down);
  }
  return {};
}

}  // namespace dsv4::backend::cuda
