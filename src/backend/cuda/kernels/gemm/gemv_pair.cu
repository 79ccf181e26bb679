// GEMV of grouped_linear and of the linear behind it in one launch, with a grid barrier between the two.
#include <algorithm>
#include <cstddef>

#include "backend/cuda/collectives/ll_exchange.cuh"
#include "backend/cuda/device/sync/grid_barrier.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/device/sync/stage_times.cuh"
#include "backend/cuda/kernels/gemm/gemv_pair.h"
#include "backend/cuda/kernels/gemm/gemv_rows.cuh"
#include "backend/cuda/kernels/gemm/gemv_units.cuh"
#include "backend/cuda/kernels/gemm/gemv_warps.cuh"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kManyStages = 4;  // 128 KB of weights that a block has in flight,
constexpr int kSomeStages = 2;  // half of it where the activations of 5 to 8 tokens take that room,
constexpr int kFewStages = 1;   // or a quarter where blocks have less shared memory than Hopper's.
constexpr size_t kSharedOfMany = size_t{200} * 1024;
constexpr int kSumsBytes = 8 * 1024;  // Sums of segments, until they are added.

struct Matrix {
  StreamShape shape;
  StreamForms form;  // One.
  const uint8_t* data;
  const uint8_t* scale;
  const uint16_t* x;
  void* y;
  int64_t x_stride;
  int64_t x_group_stride;
  int64_t y_stride;
  int64_t y_group_stride;
  int cols;
  int rows;        // A group's.
  int num_blocks;  // Blocks that share a group's row tiles.
  int max_items;   // A block's.
  int halves_span;
  float global_scale;
  bool y_is_bf16;
};

struct Params {
  Matrix first;
  Matrix second;  // One group's; its activations are what the first gives.
  int num_groups;
  int num_tokens;
  GridBarrier* barrier;
  PeerLinks links;  // Links by which the second's results go out beside y.
};
static_assert(sizeof(Params) <= 4000);  // Arguments of a launch.

__host__ __device__ __forceinline__ int ItemsAtOnce(int num_tokens) {
  return kSumsBytes / (num_tokens * kSegments * static_cast<int>(sizeof(SegmentSums)));
}
// Row tiles block, block + num_blocks, ...
__device__ __forceinline__ int NumItems(const Matrix& m, int block) {
  return block < m.num_blocks ? (m.rows / kTileRows - block + m.num_blocks - 1) / m.num_blocks : 0;
}

// Weights of kinds kFirst and kSecond. Grid: blocks of the first matrix, group by group, or more for the second.
template <int kStages, StreamKind kFirst, StreamKind kSecond>
__global__ void __launch_bounds__(kStreamThreads, 1) GemvPairKernel(const __grid_constant__ Params p) {
  MarkStage(Stage::kBegin);
  constexpr bool kAnyFp4 = IsFp4(kFirst) || IsFp4(kSecond);
  const int t = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(blockIdx.x);
  const int group = block / p.first.num_blocks;
  const int block_of_group = block % p.first.num_blocks;
  const int first_items = group < p.num_groups ? NumItems(p.first, block_of_group) : 0;
  const int num_items = first_items + NumItems(p.second, block);

  extern __shared__ __align__(16) unsigned char shared[];
  auto& ring = reinterpret_cast<WarpRing<kStages>*>(shared)[t / 32];
  auto* const sums = reinterpret_cast<SegmentSums*>(shared + kStreamWarps * sizeof(WarpRing<kStages>));
  auto* const rows = reinterpret_cast<uint16_t*>(sums + kSumsBytes / sizeof(SegmentSums));
  const auto stride_of = [](const Matrix& m) { return static_cast<int>(StreamRow(m.cols)); };
  auto* const fp8_scales =
      reinterpret_cast<float*>(rows + p.num_tokens * max(stride_of(p.first), stride_of(p.second)));
  float* const x_scales = fp8_scales + p.first.max_items * p.first.shape.scale_cols +
                          p.second.max_items * p.second.shape.scale_cols;

  const auto row_of = [&](int i) {
    return (i < first_items ? group * p.first.rows + (block_of_group + i * p.first.num_blocks) * kTileRows
                            : (block + (i - first_items) * p.second.num_blocks) * kTileRows);
  };
  const auto matrix_of = [&](int i) -> const Matrix& { return i < first_items ? p.first : p.second; };
  const auto shape_of = [&](int i) -> const StreamShape& { return matrix_of(i).shape; };
  const auto tile_of = [&](int i) {
    const Matrix& m = matrix_of(i);
    const int64_t row = row_of(i);
    return StreamTile{m.data + row * m.shape.row_bytes, m.scale + row * m.shape.scale_row_bytes};
  };
  WarpReader<kStages, kAnyFp4, decltype(tile_of), decltype(shape_of)> reader(ring, num_items, tile_of,
                                                                             shape_of);
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) reader.Load();
  const auto load_scales = [&](const Matrix& m, float* to, int first_item, int count) {
    for (int n = t; n < count * m.shape.scale_cols; n += kStreamThreads) {
      const int row = row_of(first_item + n / m.shape.scale_cols);
      to[n] = LoadBlockScale(
          m.shape, m.scale,
          static_cast<int64_t>(row >> m.shape.block_rows_log2) * m.shape.scale_cols + n % m.shape.scale_cols);
    }
  };
  float* const second_scales = fp8_scales + p.first.max_items * p.first.shape.scale_cols;
  load_scales(p.first, fp8_scales, 0, first_items);
  load_scales(p.second, second_scales, first_items, num_items - first_items);
  MarkStage(Stage::kAsked);
  WaitForKernelsBefore();
  MarkStage(Stage::kInput);
  const SumOverRanks ranks(p.links);

  const int place = t % 4;
  const int lane_token = t % 32 / 4;  // Token of B; of the sums place * 2 and the next.
  const bool exists = lane_token < p.num_tokens;
  const int items_at_once = ItemsAtOnce(p.num_tokens);
  uint32_t slot = 0;
  uint32_t left = 0;  // The barrier's.
  int current = FirstItemOfWarp();
  int first = 0;
#pragma unroll 1
  for (int phase = 0; phase < 2; ++phase) {
    const Matrix& m = phase == 0 ? p.first : p.second;
    const int phase_begin = first;
    const int phase_end = phase == 0 ? first_items : num_items;
    if (phase == 1) {
      if (first_items > 0) ArriveAtBarrier(p.barrier);
      WaitForBlocks(p.barrier, static_cast<uint32_t>(p.num_groups * p.first.num_blocks));
      left = LeaveBarrier(p.barrier);
      MarkStage(Stage::kMet);
    }
    bool in_halves = false;
    if (first < phase_end) {
      const uint16_t* const x = m.x + (phase == 0 ? group : 0) * m.x_group_stride;
      const auto row = [&](int token) { return x + token * m.x_stride; };
      if constexpr (kMayBeHalves<kFirst> || kMayBeHalves<kSecond>) {
        if (m.halves_span >= 0) {
          in_halves = __syncthreads_and(StoreHalves<kStreamThreads>(
                          rows, p.num_tokens, m.cols, m.form.forms[0], m.halves_span, row)) != 0;
        }
      }
      if (!in_halves) {
        LoadStreamRows<kStreamThreads>(rows, x_scales, p.num_tokens, m.cols, m.form, row);
        __syncthreads();
      }
    }
    MarkStage(phase == 0 ? Stage::kReady : Stage::kReadySecond);
    const auto groups = static_cast<int>(StreamGroups(m.cols));
    const float* const x_scales0 = x_scales + min(place * 2, p.num_tokens - 1) * groups;
    const float* const x_scales1 = x_scales + min(place * 2 + 1, p.num_tokens - 1) * groups;
    const float* const scales = phase == 0 ? fp8_scales : second_scales;
#pragma unroll 1
    while (first < phase_end) {
      const int end = min(phase_end, first + items_at_once);
#pragma unroll 1
      for (; current < end; current += kItemStep) {
        float segment[4] = {};
        WithStreamKind<kFirst, kSecond>(m.shape.kind, [&]<StreamKind kKind>() {
          MultiplyWarpSegment<kKind, kStages>(
              ring, slot, reader, m.shape, rows + lane_token * stride_of(m), exists,
              {scales + (current - phase_begin) * m.shape.scale_cols, x_scales0, x_scales1}, segment,
              in_halves);
        });
        StoreSegmentSums(sums + (current - first) * kSegments * p.num_tokens, p.num_tokens, segment);
        MarkFirst(Stage::kFirst);
      }
      MarkStage(phase == 0 ? Stage::kStreamed : Stage::kStreamedSecond);
      if (end == num_items) LetNextKernelStart();
      __syncthreads();
      for (int i = t; i < (end - first) * p.num_tokens * kTileRows; i += kStreamThreads) {
        const int row = i % kTileRows;
        const int token = i / kTileRows % p.num_tokens;
        const int of = i / (kTileRows * p.num_tokens);
        float sum = 0.0F;
        WithStreamKind<kFirst, kSecond>(m.shape.kind, [&]<StreamKind kKind>() {
          sum = SumSegments<FormatOf(kKind)>(sums + of * kSegments * p.num_tokens, p.num_tokens, token, row,
                                             m.shape, m.global_scale);
        });
        const int of_group = phase == 0 ? group : 0;
        const int64_t at =
            of_group * m.y_group_stride + token * m.y_stride + row_of(first + of) + row - of_group * m.rows;
        if (m.y_is_bf16) {
          static_cast<uint16_t*>(m.y)[at] = Bf16FromFloat(sum);
        } else {
          static_cast<float*>(m.y)[at] = sum;
          if (phase == 1) ranks.Push(at, sum);
        }
      }
      if (end < phase_end) __syncthreads();
      first = end;
    }
  }
  CloseBarrier(p.barrier, left, gridDim.x);
  EndStages(StageKernel::kPair, int64_t{kTileRows} * (first_items * p.first.shape.row_bytes +
                                                      (num_items - first_items) * p.second.shape.row_bytes));
}

using Kernel = void (*)(Params);

// The release's own, and their substitutes without quantization; null: others.
template <int kStages>
Kernel KernelOf(StreamKind first, StreamKind second) {
  if (first == StreamKind::kFp8Plain && second == StreamKind::kFp8)
    return GemvPairKernel<kStages, StreamKind::kFp8Plain, StreamKind::kFp8>;
  if (first == StreamKind::kMxFp8 && second == StreamKind::kMxFp8)
    return GemvPairKernel<kStages, StreamKind::kMxFp8, StreamKind::kMxFp8>;
  if (first == StreamKind::kBf16 && second == StreamKind::kBf16)
    return GemvPairKernel<kStages, StreamKind::kBf16, StreamKind::kBf16>;
  return nullptr;
}

Matrix MatrixOf(const LinearWork& args, int most_blocks) {
  const auto rows = static_cast<int>(args.rows_per_group);
  const int num_blocks = std::max(1, std::min(rows / kTileRows, most_blocks));
  const StreamShape shape = ShapeOf(args.weight);
  return {.shape = shape,
          .form = FormsOf(args.weight),
          .data = args.weight.data,
          .scale = static_cast<const uint8_t*>(args.weight.scale),
          .x = args.x,
          .y = args.y,
          .x_stride = args.x_stride,
          .x_group_stride = args.x_group_stride,
          .y_stride = args.y_stride,
          .y_group_stride = args.y_group_stride,
          .cols = static_cast<int>(args.weight.cols),
          .rows = rows,
          .num_blocks = num_blocks,
          .max_items = static_cast<int>(CeilDiv(rows / kTileRows, num_blocks)),
          .halves_span = shape.halves_span(),
          .global_scale = args.weight.global_scale,
          .y_is_bf16 = args.y_is_bf16};
}

size_t SharedBytes(const Params& p, int stages) {
  size_t bytes = WarpRingsBytes(stages) + kSumsBytes;
  size_t rows = 0;
  size_t x_scales = 0;
  for (const Matrix* const m : {&p.first, &p.second}) {
    rows = std::max(rows, StreamRowsBytes(m->cols, p.num_tokens));
    x_scales = std::max(x_scales, StreamScalesBytes(m->cols, p.num_tokens));
    bytes += static_cast<size_t>(m->max_items * m->shape.scale_cols) * sizeof(float);
  }
  return bytes + rows + x_scales;
}

struct PairPlan {
  Kernel kernel = nullptr;  // Null: there is none.
  unsigned grid = 0;
  size_t shared_bytes = 0;
  Params params;
};
PairPlan PlanOf(const LaunchContext& context, const LinearWork& groups, const LinearWork& linear) {
  const int num_sms = context.limits().num_sms;
  const auto num_groups = static_cast<int>(groups.num_groups);
  const StreamKind first = StreamKindOf(groups.weight);
  const StreamKind second = StreamKindOf(linear.weight);
  const size_t most_bytes = context.limits().shared_bytes;
  PairPlan plan = {.params = {.first = MatrixOf(groups, num_sms / num_groups),
                              .second = MatrixOf(linear, num_sms),
                              .num_groups = num_groups,
                              .num_tokens = static_cast<int>(linear.num_tokens),
                              .barrier = nullptr,
                              .links = {}}};
  plan.grid = static_cast<unsigned>(
      std::max(num_groups * plan.params.first.num_blocks, plan.params.second.num_blocks));
  const auto take = [&]<int kStages>() {
    plan.kernel = KernelOf<kStages>(first, second);
    plan.shared_bytes = SharedBytes(plan.params, kStages);
  };
  if (most_bytes < kSharedOfMany) {
    take.template operator()<kFewStages>();
  } else if (SharedBytes(plan.params, kManyStages) <= most_bytes) {
    take.template operator()<kManyStages>();
  } else {
    take.template operator()<kSomeStages>();
  }
  return plan;
}

}  // namespace

bool HoldsGemvPair(LaunchContext& context, const LinearWork& groups, const LinearWork& linear) {
  const PairPlan plan = PlanOf(context, groups, linear);
  return plan.kernel != nullptr && context.RunsAtOnce(reinterpret_cast<const void*>(plan.kernel), plan.grid,
                                                      kStreamThreads, plan.shared_bytes);
}

Status LaunchGemvPair(LaunchContext& context, const LinearWork& groups, const LinearWork& linear,
                      const PeerLinks& links) {
  PairPlan plan = PlanOf(context, groups, linear);
  Params& params = plan.params;
  DSV4_ASSIGN_OR_RETURN_STATUS(params.barrier, context.GridBarriers());
  params.links = links;
  context.Launch(plan.kernel, plan.grid, kStreamThreads, plan.shared_bytes, params);
  return {};
}

}  // namespace dsv4::backend::cuda
