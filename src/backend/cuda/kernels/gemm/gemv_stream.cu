// GEMV of up to eight tokens and eight matrices in one launch, at the rate of reading weights.
#include <algorithm>
#include <cstddef>
#include <span>

#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/device/sync/stage_times.cuh"
#include "backend/cuda/kernels/gemm/gemv_rows.cuh"
#include "backend/cuda/kernels/gemm/gemv_stream.h"
#include "backend/cuda/kernels/gemm/gemv_units.cuh"
#include "backend/cuda/kernels/gemm/gemv_warps.cuh"
#include "backend/cuda/kernels/hyper_connection/hc_mix.cuh"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

// One block an SM.
constexpr int kManyStages = 3;         // 96 KB of weights that a block has in flight,
constexpr int kSomeStages = 2;         // less where two forms of seven or eight tokens take that room,
constexpr int kFewStages = 1;          // or a third where there is too little shared memory.
constexpr int kSumsBytes = 16 * 1024;  // Sums of segments, until they are added.
constexpr int kMaxMatrices = static_cast<int>(kMaxFusedMatrices);

// A weight, and where its products go.
struct Matrix {
  StreamShape shape;
  const uint8_t* data;
  const uint8_t* scale;
  void* y;
  int64_t y_stride;
  int64_t y_group_stride;
  float global_scale;
  int form;        // The activations', in Params::forms.
  int first_tile;  // First of the matrix's tiles among the launch's.
  int rows;        // A group's.
  bool y_is_bf16;
};

struct Params {
  int num_matrices;
  StreamForms forms;
  int num_tiles;      // A group's, all matrices together,
  int num_blocks;     // that share them; the others do `mix`.
  int max_items;      // A block's.
  int scales_stride;  // Stride of a tile's scales: the most blocks of columns that any FP8 matrix has.
  int halves_span;    // The most of any kMxFp8; -1: of some there are no halves.
  HcPreParams mix;
  int mix_tokens;
  int cols;
  int num_tokens;
  const uint16_t* x;
  int64_t x_stride;
  int64_t x_group_stride;
  Matrix matrices
      [kMaxMatrices];  // Last (ClearPadding). Those behind num_matrices are zero: equal launches are equal bytes.
};
static_assert(offsetof(Params, matrices) + sizeof(Params::matrices) == sizeof(Params));

// A row tile of a block.
struct alignas(16) Item {
  StreamTile tile;
  int matrix;
  int first_row;  // The matrix's.
};

// Row tiles whose sums of segments are added at once.
__host__ __device__ __forceinline__ int ItemsAtOnce(int num_tokens) {
  return kSumsBytes / (num_tokens * kSegments * static_cast<int>(sizeof(SegmentSums)));
}

// The small launch behind begins while weights are still read: its positions, angles and code are there when its input is. One that begins late
// takes 3 us more. Registers for a block of it are left by a bound of so many threads more. V4.1's kernels were 2 % slower so.
constexpr int kThreadsBehind = 128;
constexpr bool LetsNextBeginEarly(StreamKind kind) { return kind != StreamKind::kMxFp8; }
template <StreamKind... kKinds>
constexpr int kMostThreads = kStreamThreads + ((LetsNextBeginEarly(kKinds) && ...) ? kThreadsBehind : 0);

// Weights of kinds kKinds. Grid: blocks that share a group's row tiles, groups.
template <int kStages, StreamKind... kKinds>
__global__ void __launch_bounds__(kMostThreads<kKinds...>, 1)
    GemvStreamKernel(const __grid_constant__ Params p) {
  MarkStage(Stage::kBegin);
  constexpr bool kLetsNextBeginEarly = (LetsNextBeginEarly(kKinds) && ...);
  constexpr bool kAnyFp4 = (IsFp4(kKinds) || ...);
  const int t = static_cast<int>(threadIdx.x);
  const int64_t group = blockIdx.y;
  const int num_blocks = p.num_blocks;
  const int block = static_cast<int>(blockIdx.x);
  if (block >= num_blocks) {
    LetNextKernelStart();
    WaitForKernelsBefore();
    return HcMixOfToken<kStreamThreads>(p.mix, block - num_blocks);
  }
  const int x_stride = static_cast<int>(StreamRow(p.cols));
  const auto groups = static_cast<int>(StreamGroups(p.cols));
  const int num_items = (p.num_tiles - block + num_blocks - 1) / num_blocks;
  const int items_at_once = ItemsAtOnce(p.num_tokens);

  extern __shared__ __align__(16) unsigned char shared[];
  auto& ring = reinterpret_cast<WarpRing<kStages>*>(shared)[t / 32];
  auto* const sums = reinterpret_cast<SegmentSums*>(shared + kStreamWarps * sizeof(WarpRing<kStages>));
  auto* const items = reinterpret_cast<Item*>(sums + kSumsBytes / sizeof(SegmentSums));
  auto* const shared_x = reinterpret_cast<uint16_t*>(items + p.max_items);
  // All forms of the rows lie before the scales.
  auto* const x_scales = reinterpret_cast<float*>(shared_x + p.forms.count * p.num_tokens * x_stride);
  float* const fp8_scales = x_scales + p.num_tokens * groups;

  for (int i = t; i < num_items; i += kStreamThreads) {
    const int tile = block + i * num_blocks;
    int matrix = 0;
    while (matrix + 1 < p.num_matrices && tile >= p.matrices[matrix + 1].first_tile) ++matrix;
    const Matrix& m = p.matrices[matrix];
    const int first_row = static_cast<int>(group) * m.rows + (tile - m.first_tile) * kTileRows;
    items[i] = {{m.data + static_cast<int64_t>(first_row) * m.shape.row_bytes,
                 m.scale + static_cast<int64_t>(first_row) * m.shape.scale_row_bytes},
                matrix,
                first_row};
  }
  __syncthreads();
  const auto shape_of = [&](int i) -> const StreamShape& { return p.matrices[items[i].matrix].shape; };
  const auto tile_of = [&](int i) { return items[i].tile; };
  WarpReader<kStages, kAnyFp4, decltype(tile_of), decltype(shape_of)> reader(ring, num_items, tile_of,
                                                                             shape_of);
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) reader.Load();
  for (int n = t; n < num_items * p.scales_stride; n += kStreamThreads) {
    const Item& item = items[n / p.scales_stride];
    const Matrix& m = p.matrices[item.matrix];
    const int column = n % p.scales_stride;
    if (column < m.shape.scale_cols) {
      fp8_scales[n] = LoadBlockScale(
          m.shape, m.scale,
          static_cast<int64_t>(item.first_row >> m.shape.block_rows_log2) * m.shape.scale_cols + column);
    }
  }
  MarkStage(Stage::kAsked);
  WaitForKernelsBefore();
  MarkStage(Stage::kInput);
  const uint16_t* const x = p.x + group * p.x_group_stride;
  const auto row_of = [&](int token) { return x + token * p.x_stride; };
  bool in_halves = false;
  if constexpr ((kMayBeHalves<kKinds> || ...)) {
    if (p.halves_span >= 0) {
      bool held = true;
#pragma unroll 1
      for (int f = 0; f < p.forms.count; ++f) {
        const StreamForm form = p.forms.forms[f];
        uint16_t* const to = shared_x + f * p.num_tokens * x_stride;
        if (form == StreamForm::kPlain) {
          LoadStreamRows<kStreamThreads>(to, x_scales, p.num_tokens, p.cols, {.count = 1, .forms = {form}},
                                         row_of);
        } else {
          held = StoreHalves<kStreamThreads>(to, p.num_tokens, p.cols, form, p.halves_span, row_of) && held;
        }
      }
      in_halves = __syncthreads_and(held) != 0;
    }
  }
  if (!in_halves) {
    LoadStreamRows<kStreamThreads>(shared_x, x_scales, p.num_tokens, p.cols, p.forms, row_of);
    __syncthreads();
  }
  MarkStage(Stage::kReady);
  if constexpr (kLetsNextBeginEarly) LetNextKernelStart();

  const int place = t % 4;
  const int lane_token = t % 32 / 4;  // Token of B; of the sums place * 2 and the next.
  const bool exists = lane_token < p.num_tokens;
  const float* const x_scales0 = x_scales + min(place * 2, p.num_tokens - 1) * groups;
  const float* const x_scales1 = x_scales + min(place * 2 + 1, p.num_tokens - 1) * groups;
  uint32_t slot = 0;
  int current = FirstItemOfWarp();
#pragma unroll 1
  for (int first = 0; first < num_items; first += items_at_once) {
    const int end = min(num_items, first + items_at_once);
#pragma unroll 1
    for (; current < end; current += kItemStep) {
      const Matrix& m = p.matrices[items[current].matrix];
      float segment[4] = {};
      WithStreamKind<kKinds...>(m.shape.kind, [&]<StreamKind kKind>() {
        MultiplyWarpSegment<kKind, kStages>(
            ring, slot, reader, m.shape, shared_x + (m.form * p.num_tokens + lane_token) * x_stride, exists,
            {fp8_scales + current * p.scales_stride, x_scales0, x_scales1}, segment, in_halves);
      });
      StoreSegmentSums(sums + (current - first) * kSegments * p.num_tokens, p.num_tokens, segment);
      MarkFirst(Stage::kFirst);
    }
    MarkStage(Stage::kStreamed);
    if (!kLetsNextBeginEarly && end == num_items) LetNextKernelStart();
    __syncthreads();
    for (int i = t; i < (end - first) * p.num_tokens * kTileRows; i += kStreamThreads) {
      const int row = i % kTileRows;
      const int token = i / kTileRows % p.num_tokens;
      const int of = i / (kTileRows * p.num_tokens);
      const Item& item = items[first + of];
      const Matrix& m = p.matrices[item.matrix];
      float sum = 0.0F;
      WithStreamKind<kKinds...>(m.shape.kind, [&]<StreamKind kKind>() {
        sum = SumSegments<FormatOf(kKind)>(sums + of * kSegments * p.num_tokens, p.num_tokens, token, row,
                                           m.shape, m.global_scale);
      });
      const int64_t place_in_y = group * m.y_group_stride + token * m.y_stride + item.first_row + row -
                                 static_cast<int>(group) * m.rows;
      if (m.y_is_bf16) {
        static_cast<uint16_t*>(m.y)[place_in_y] = Bf16FromFloat(sum);
      } else {
        static_cast<float*>(m.y)[place_in_y] = sum;
      }
    }
    if (end < num_items) __syncthreads();
  }
  int64_t num_bytes = 0;
  for (int i = 0; i < num_items; ++i) num_bytes += kTileRows * shape_of(i).row_bytes;
  EndStages(StageKernel::kStream, num_bytes);
}

using Kernel = void (*)(Params);

// For a matrix, or several of that kind.
template <int kStages>
Kernel KernelOf(StreamKind kind) {
  switch (kind) {
    case StreamKind::kBf16:
      return GemvStreamKernel<kStages, StreamKind::kBf16>;
    case StreamKind::kFp8:
      return GemvStreamKernel<kStages, StreamKind::kFp8>;
    case StreamKind::kFp8Plain:
      return GemvStreamKernel<kStages, StreamKind::kFp8Plain>;
    case StreamKind::kMxFp8:
    case StreamKind::kMxFp8Halves:
      return GemvStreamKernel<kStages, StreamKind::kMxFp8>;
    case StreamKind::kMxFp4:
      return GemvStreamKernel<kStages, StreamKind::kMxFp4>;
    case StreamKind::kMxFp4Stored:
      return GemvStreamKernel<kStages, StreamKind::kMxFp4Stored>;
    case StreamKind::kNvFp4:
      break;
  }
  return GemvStreamKernel<kStages, StreamKind::kNvFp4>;
}

// The kernel for these matrices; null where they do not go together. The releases' own mixtures are FP8 and BF16.
template <int kStages>
Kernel KernelOf(const Params& params) {
  const StreamKind first = params.matrices[0].shape.kind;
  bool alike = true;
  bool fp8_or_bf16 = true;
  bool mxfp8_or_bf16 = true;
  for (int i = 0; i < params.num_matrices; ++i) {
    const StreamKind kind = params.matrices[i].shape.kind;
    alike = alike && kind == first;
    fp8_or_bf16 = fp8_or_bf16 && (kind == StreamKind::kFp8 || kind == StreamKind::kBf16);
    mxfp8_or_bf16 = mxfp8_or_bf16 && (kind == StreamKind::kMxFp8 || kind == StreamKind::kBf16);
  }
  if (alike) return KernelOf<kStages>(first);
  if (mxfp8_or_bf16) return GemvStreamKernel<kStages, StreamKind::kMxFp8, StreamKind::kBf16>;
  return fp8_or_bf16 ? static_cast<Kernel>(GemvStreamKernel<kStages, StreamKind::kFp8, StreamKind::kBf16>)
                     : nullptr;
}

// Adds a weight's tiles to a launch.
void AddMatrix(Params& params, const LinearWork& args) {
  Matrix& matrix = params.matrices[params.num_matrices++];
  matrix.shape = ShapeOf(args.weight);
  matrix.data = args.weight.data;
  matrix.scale = static_cast<const uint8_t*>(args.weight.scale);
  matrix.y = args.y;
  matrix.y_stride = args.y_stride;
  matrix.y_group_stride = args.y_group_stride;
  matrix.global_scale = args.weight.global_scale;
  matrix.form = params.forms.Add(FormOf(args.weight));
  matrix.first_tile = params.num_tiles;
  matrix.rows = static_cast<int>(args.rows_per_group);
  matrix.y_is_bf16 = args.y_is_bf16;
  params.num_tiles += static_cast<int>(CeilDiv(args.rows_per_group, kTileRows));
  params.scales_stride = std::max(params.scales_stride, matrix.shape.scale_cols);
}

}  // namespace

void LaunchGemvStream(LaunchContext& context, std::span<const LinearWork* const> linears) {
  const LinearWork& first = *linears[0];
  const int64_t num_groups = first.num_groups;
  Params params = {};
  params.cols = static_cast<int>(first.weight.cols);
  params.num_tokens = static_cast<int>(first.num_tokens);
  params.x = first.x;
  params.x_stride = first.x_stride;
  params.x_group_stride = first.x_group_stride;
  for (const LinearWork* const linear : linears) AddMatrix(params, *linear);
  for (int i = 0; i < params.num_matrices; ++i) {
    const StreamShape& shape = params.matrices[i].shape;
    if (shape.kind != StreamKind::kMxFp8 || params.halves_span < 0) continue;
    params.halves_span = shape.halves_span() < 0 ? -1 : std::max(params.halves_span, shape.halves_span());
  }
  if (first.mix.num_tokens > 0) {
    params.mix = first.mix.params;
    params.mix_tokens = first.mix.num_tokens;
  }
  const int64_t max_blocks = std::max<int64_t>(1, context.limits().num_sms / num_groups - params.mix_tokens);
  params.num_blocks = static_cast<int>(std::min<int64_t>(params.num_tiles, max_blocks));
  // As few blocks as have no more tiles each: launches in front and behind have the other SMs.
  const int64_t most_tiles = CeilDiv(params.num_tiles, params.num_blocks);
  params.num_blocks = static_cast<int>(CeilDiv(params.num_tiles, most_tiles));
  params.max_items = static_cast<int>(CeilDiv(params.num_tiles, params.num_blocks));
  const dim3 grid(static_cast<unsigned>(params.num_blocks + params.mix_tokens),
                  static_cast<unsigned>(num_groups));
  const size_t other_bytes =
      kSumsBytes + static_cast<size_t>(params.max_items) * sizeof(Item) +
      static_cast<size_t>(params.forms.count) * StreamRowsBytes(params.cols, params.num_tokens) +
      StreamScalesBytes(params.cols, params.num_tokens) +
      static_cast<size_t>(params.max_items * params.scales_stride) * sizeof(float);
  static_assert(kStreamWarps * sizeof(WarpRing<1>) == WarpRingsBytes(1));
  const auto fits = [&](int stages) {
    return other_bytes + WarpRingsBytes(stages) <= context.limits().shared_bytes;
  };
  const int stages = fits(kManyStages) ? kManyStages : (fits(kSomeStages) ? kSomeStages : kFewStages);
  const Kernel kernel = stages == kManyStages   ? KernelOf<kManyStages>(params)
                        : stages == kSomeStages ? KernelOf<kSomeStages>(params)
                                                : KernelOf<kFewStages>(params);
  context.Launch(kernel, grid, kStreamThreads, other_bytes + WarpRingsBytes(stages), params);
}

}  // namespace dsv4::backend::cuda
