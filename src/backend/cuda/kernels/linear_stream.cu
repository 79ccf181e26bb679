#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/kernels/hc_mix.h"
#include "backend/cuda/kernels/linear_stream.h"
#include "backend/cuda/kernels/memory_range.h"
#include "backend/cuda/kernels/routed_experts_joint.h"
#include "backend/cuda/kernels/stream_kernel.cuh"

namespace dsv4::backend::cuda {
namespace {

using stream_kernel::Item;
using stream_kernel::kMaxMatrices;
using stream_kernel::kMaxNormWidth;
using stream_kernel::kStages;
using stream_kernel::kSumsBytes;
using stream_kernel::Matrix;
using stream_kernel::Params;
using stream_kernel::Phase;
using stream_kernel::StreamKernel;

const Phase& PhaseOf(const Params& params, int number) { return number == 0 ? params.first : params.second; }
Phase& PhaseOf(Params& params, int number) { return number == 0 ? params.first : params.second; }
const Phase& LastPhase(const Params& params) { return PhaseOf(params, params.num_phases - 1); }
Phase& LastPhase(Params& params) { return PhaseOf(params, params.num_phases - 1); }

std::span<const Matrix> MatricesOf(const Params& params) {
  const Phase& last = LastPhase(params);
  return {params.matrices, static_cast<size_t>(last.first_matrix + last.num_matrices)};
}

using Kernel = void (*)(Params);

// For a matrix, or several of that kind.
Kernel KernelOf(StreamKind kind) {
  switch (kind) {
    case StreamKind::kBf16:
      return StreamKernel<StreamKind::kBf16>;
    case StreamKind::kFp8:
      return StreamKernel<StreamKind::kFp8>;
    case StreamKind::kFp8Plain:
      return StreamKernel<StreamKind::kFp8Plain>;
    case StreamKind::kMxFp4:
      return StreamKernel<StreamKind::kMxFp4>;
    case StreamKind::kNvFp4:
      break;
  }
  return StreamKernel<StreamKind::kNvFp4>;
}

// The kernel for these matrices; null where they do not go together. The release's own mixtures are FP8 with BF16, and with FP8 whose
// activations stay as they are.
Kernel KernelOf(const Params& params) {
  const StreamKind first = params.matrices[0].shape.kind;
  bool alike = true;
  bool fp8_or_bf16 = true;
  bool any_fp8 = true;
  for (const Matrix& matrix : MatricesOf(params)) {
    const StreamKind kind = matrix.shape.kind;
    alike = alike && kind == first;
    fp8_or_bf16 = fp8_or_bf16 && (kind == StreamKind::kFp8 || kind == StreamKind::kBf16);
    any_fp8 = any_fp8 && (kind == StreamKind::kFp8 || kind == StreamKind::kFp8Plain);
  }
  if (alike) return KernelOf(first);
  if (fp8_or_bf16) return StreamKernel<StreamKind::kFp8, StreamKind::kBf16>;
  return any_fp8 ? static_cast<Kernel>(StreamKernel<StreamKind::kFp8, StreamKind::kFp8Plain>) : nullptr;
}

// A phase without matrices.
Phase NewPhase(const StreamLinearArgs& args, int first_matrix) {
  return {.first_matrix = first_matrix,
          .num_matrices = 0,
          .num_groups = static_cast<int>(args.num_groups),
          .num_blocks = 0,
          .num_tiles = 0,
          .cols = static_cast<int>(args.weight.cols),
          .forms = {},
          .x = args.x,
          .x_stride = args.x_stride,
          .x_group_stride = args.x_group_stride,
          .norm = {}};
}

// Adds a weight's tiles to the last phase.
void AddMatrix(Params& params, const StreamLinearArgs& args) {
  Phase& phase = LastPhase(params);
  Matrix& matrix = params.matrices[phase.first_matrix + phase.num_matrices++];
  matrix.shape = ShapeOf(args.weight);
  matrix.data = args.weight.data;
  matrix.scale = static_cast<const uint8_t*>(args.weight.scale);
  matrix.y = args.y;
  matrix.y_stride = args.y_stride;
  matrix.y_group_stride = args.y_group_stride;
  matrix.global_scale = args.weight.global_scale;
  matrix.form = phase.forms.Add(FormOf(args.weight));
  matrix.first_tile = phase.num_tiles;
  matrix.rows = static_cast<int>(args.rows_per_group);
  matrix.y_is_bf16 = args.y_is_bf16;
  phase.num_tiles += static_cast<int>(CeilDiv(args.rows_per_group, kTileRows));
  params.scales_stride = std::max(params.scales_stride, matrix.shape.scale_cols);
}

MemoryRange RangeOfOutput(const Matrix& matrix, int num_groups, int num_tokens) {
  return RangeOfRows(matrix.y, matrix.y_stride, (num_groups - 1) * matrix.y_group_stride + matrix.rows,
                     matrix.y_is_bf16, num_tokens);
}

}  // namespace

// A launch that the next linear may join, or a norm.
struct OpenLinear {
  uint64_t launch = 0;
  int busy_processors = 0;  // That the kernel in front has until it ends.
  Params params;
};

namespace {

// Where a launch has two phases its blocks wait for each other, so all must have room at once.
bool HasRoom(CudaContext& context, Kernel kernel, const Params& params, size_t shared_bytes) {
  return params.num_phases == 1 ||
         context.queue().RunsAtOnce(reinterpret_cast<const void*>(kernel),
                                    static_cast<unsigned>(params.num_blocks + params.mix_tokens),
                                    kStreamThreads, shared_bytes);
}

// Deals the tiles out.
void ShareTiles(Params& params, int num_processors, int busy_processors) {
  params.num_blocks = 0;
  params.max_items = 0;
  params.rows_elements = 0;
  for (int i = 0; i < params.num_phases; ++i) {
    Phase& phase = PhaseOf(params, i);
    const int processors = std::max(1, num_processors - params.mix_tokens - (i == 0 ? busy_processors : 0));
    const int of_group = std::max(1, std::min(phase.num_tiles, processors / phase.num_groups));
    phase.num_blocks = of_group * phase.num_groups;
    params.num_blocks = std::max(params.num_blocks, phase.num_blocks);
    params.max_items += static_cast<int>(CeilDiv(phase.num_tiles, of_group));
    const int64_t rows = phase.forms.count * params.num_tokens * StreamRow(phase.cols);
    params.rows_elements = std::max(params.rows_elements, static_cast<int>(rows));
  }
}

// Launches open.params, or puts them in place of open.launch (0: nothing): false if that is too late, or two phases have no room.
bool Launch(CudaContext& context, OpenLinear& open) {
  Params& params = open.params;
  const Kernel kernel = KernelOf(params);
  if (kernel == nullptr) return false;
  if (params.num_phases > 1) {
    const Result<GridBarrier*> barriers = context.GridBarriers();
    if (!barriers.has_value()) return false;
    params.barrier = *barriers;
  }
  ShareTiles(params, context.queue().num_processors(), open.busy_processors);
  size_t x_scales_bytes = 0;
  for (int i = 0; i < params.num_phases; ++i)
    x_scales_bytes = std::max(x_scales_bytes, StreamScalesBytes(PhaseOf(params, i).cols, params.num_tokens));
  const size_t shared_bytes = kStreamWarps * sizeof(WarpRing<kStages>) + kSumsBytes +
                              static_cast<size_t>(params.max_items) * sizeof(Item) +
                              static_cast<size_t>(params.rows_elements) * sizeof(uint16_t) +
                              static_cast<size_t>(params.max_items * params.scales_stride) * sizeof(float) +
                              x_scales_bytes;
  if (!HasRoom(context, kernel, params, shared_bytes)) return false;
  const auto grid = static_cast<unsigned>(params.num_blocks + params.mix_tokens);
  const uint64_t launch =
      context.queue().LaunchInPlaceOf(open.launch, kernel, grid, kStreamThreads, shared_bytes, params);
  if (launch == 0) return false;
  open.launch = launch;
  if (!context.queue().prefetches()) return true;
  std::vector<ReadRange> ranges;
  for (int i = 0; i < params.num_phases; ++i) {
    const Phase& phase = PhaseOf(params, i);
    for (const Matrix& m : MatricesOf(params).subspan(static_cast<size_t>(phase.first_matrix),
                                                      static_cast<size_t>(phase.num_matrices))) {
      const auto rows = static_cast<size_t>(phase.num_groups * m.rows);
      ranges.push_back(
          {reinterpret_cast<const std::byte*>(m.data), rows * static_cast<size_t>(m.shape.row_bytes)});
      if (m.shape.scale_row_bytes > 0) {
        ranges.push_back({reinterpret_cast<const std::byte*>(m.scale),
                          rows * static_cast<size_t>(m.shape.scale_row_bytes)});
      }
    }
  }
  context.queue().NoteReader(launch, std::move(ranges));
  return true;
}

bool HasRoomForMatrix(const Params& params) {
  return MatricesOf(params).size() < static_cast<size_t>(kMaxMatrices);
}

// Whether nothing of the last phase is what this linear writes: a phase runs at once.
bool IsApart(const Params& params, const StreamLinearArgs& args) {
  const Phase& phase = LastPhase(params);
  const MemoryRange y =
      RangeOfRows(args.y, args.y_stride, args.rows_per_group, args.y_is_bf16, args.num_tokens);
  if (Overlap(y, RangeOfRows(phase.x, phase.x_stride, phase.cols, true, params.num_tokens))) return false;
  return std::ranges::none_of(
      MatricesOf(params).subspan(static_cast<size_t>(phase.first_matrix)),
      [&](const Matrix& m) { return Overlap(y, RangeOfOutput(m, phase.num_groups, params.num_tokens)); });
}

// Whether this linear has become part of the last launch, whose last phase is of the same activations.
bool Joins(CudaContext& context, const OpenLinear& before, const StreamLinearArgs& args) {
  OpenLinear open = before;
  Phase& phase = LastPhase(open.params);
  if (phase.num_groups != 1 || phase.x != args.x || phase.cols != args.weight.cols ||
      (args.num_tokens > 1 && phase.x_stride != args.x_stride) || !HasRoomForMatrix(open.params) ||
      !IsApart(open.params, args)) {
    return false;
  }
  AddMatrix(open.params, args);
  if (static_cast<size_t>(phase.forms.count) * StreamRowsBytes(phase.cols, args.num_tokens) >
          kMaxStreamRowsBytes ||
      !Launch(context, open)) {
    return false;
  }
  *context.open_linear() = open;
  return true;
}

// Whether this linear has become the second phase of the last launch: its activations are what the first gives, as a whole.
bool Follows(CudaContext& context, const OpenLinear& before, const StreamLinearArgs& args) {
  OpenLinear open = before;
  Params& params = open.params;
  const Phase& first = params.first;
  if (params.num_phases != 1 || !HasRoomForMatrix(params)) return false;
  const bool given = std::ranges::any_of(MatricesOf(params), [&](const Matrix& m) {
    return m.y == args.x && m.y_is_bf16 && m.y_group_stride == m.rows &&
           int64_t{first.num_groups} * m.rows == args.weight.cols &&
           (args.num_tokens == 1 || m.y_stride == args.x_stride);
  });
  if (!given) return false;
  params.second = NewPhase(args, static_cast<int>(MatricesOf(params).size()));
  params.num_phases = 2;
  if (!IsApart(params, args)) return false;
  AddMatrix(params, args);
  if (!Launch(context, open)) return false;
  *context.open_linear() = open;
  return true;
}

// The launch that a linear or a norm may join, if it is the last.
const OpenLinear* LastLinear(CudaContext& context, int64_t num_tokens) {
  const OpenLinear* const open = context.open_linear().get();
  return open != nullptr && open->params.num_tokens == num_tokens &&
                 context.queue().IsLastLaunch(open->launch)
             ? open
             : nullptr;
}

}  // namespace

bool CanStreamLinear(const DeviceWeight& weight, int64_t rows_per_group, const TensorView& x,
                     int64_t num_tokens, int64_t x_stride) {
  return num_tokens <= kTokensPerTile && CanStreamWeight(weight, rows_per_group) &&
         CanStreamRows(x, weight.cols, x_stride, num_tokens);
}

void StreamLinear(CudaContext& context, const StreamLinearArgs& args) {
  if (args.num_groups == 1) {
    if (const OpenLinear* const last = LastLinear(context, args.num_tokens);
        last != nullptr && (Joins(context, *last, args) || Follows(context, *last, args))) {
      return;
    }
  }
  if (LinearJoinsExperts(context, args)) return;
  OpenLinear open = {};
  Params& params = open.params;
  params.num_tokens = static_cast<int>(args.num_tokens);
  params.num_phases = 1;
  params.first = NewPhase(args, 0);
  AddMatrix(params, args);
  if (args.num_groups == 1) {
    if (const std::optional<HcMixWork> mix = TakeHcMix(context); mix.has_value()) {
      params.mix = mix->params;
      params.mix_tokens = mix->num_tokens;
      // Blocks there would begin when all others have their weights, and end as much later.
      const int processors = context.queue().num_processors();
      if (mix->busy_processors * 4 <= processors) open.busy_processors = mix->busy_processors;
    }
  }
  Launch(context, open);
  context.open_linear() = std::make_shared<OpenLinear>(open);
}

bool NormJoinsLinear(CudaContext& context, const ops::RmsNormArgs& args) {
  const int64_t width = args.x.shape[1];
  const OpenLinear* const last = LastLinear(context, args.x.shape[0]);
  if (last == nullptr || args.x.shape[0] != 1 || args.x.dtype != DType::kBF16 ||
      args.y.dtype != DType::kBF16 || args.y.data != args.x.data || width > kMaxNormWidth) {
    return false;
  }
  OpenLinear open = *last;
  Params& params = open.params;
  if (params.num_phases != 1 || params.first.num_groups != 1) return false;
  const auto normed = std::ranges::find_if(MatricesOf(params), [&](const Matrix& m) {
    return m.y == args.x.data && m.y_is_bf16 && m.rows == width;
  });
  if (normed == MatricesOf(params).end()) return false;
  // Blocks read the row while one writes its norm in its place: it is left somewhere else. Not where `mix` reads.
  const MemoryRange dots = {
      params.mix.dots,
      static_cast<size_t>(params.mix_tokens *
                          (((2 + params.mix.mult) * params.mix.mult + 1) * params.mix.num_parts)) *
          sizeof(double)};
  uint16_t* from = nullptr;
  do {
    const Result<uint16_t*> row = context.Scratch<uint16_t>(std::max<int64_t>(width, 1024));
    if (!row.has_value()) return false;
    from = *row;
  } while (Overlap(dots, {from, static_cast<size_t>(width) * sizeof(uint16_t)}));
  params.matrices[normed - MatricesOf(params).begin()].y = from;
  params.second = {.first_matrix = static_cast<int>(MatricesOf(params).size()),
                   .num_matrices = 0,
                   .num_groups = 1,
                   .num_blocks = 0,
                   .num_tiles = 0,
                   .cols = static_cast<int>(width),
                   .forms = {},
                   .x = args.y.as<const uint16_t>(),
                   .x_stride = width,
                   .x_group_stride = 0,
                   .norm = {.from = from,
                            .to = args.y.as<uint16_t>(),
                            .weight = args.weight.as<const float>(),
                            .width = static_cast<int>(width),
                            .eps = args.eps}};
  params.num_phases = 2;
  if (!Launch(context, open)) return false;
  *context.open_linear() = open;
  return true;
}

}  // namespace dsv4::backend::cuda
