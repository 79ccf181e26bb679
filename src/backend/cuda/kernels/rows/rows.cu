#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/attention/decode_cluster.h"
#include "backend/cuda/kernels/hyper_connection/hc_mix.h"
#include "backend/cuda/kernels/rows/head_rows.h"
#include "backend/cuda/kernels/rows/many_heads.h"
#include "backend/cuda/kernels/rows/many_rows.h"
#include "backend/cuda/kernels/rows/row_tracks.h"
#include "backend/cuda/kernels/rows/rows.h"
#include "backend/cuda/lowering/select/rows.h"

namespace dsv4::backend::cuda {

// The last launch of row steps, which may fuse with another.
struct OpenRows {
  uint64_t launch = 0;
  int64_t num_blocks = 0;
  RowTracks params;
  std::vector<std::pair<int, MemoryRange>> touched;  // By track.
};

namespace {

HeadsShape HeadsOf(const TensorView& x, const TensorView& y) {
  return {.x_dtype = x.dtype,
          .y_dtype = y.dtype,
          .num_tokens = x.shape[0],
          .num_heads = x.shape[1],
          .width = x.shape[2],
          .x = x.data,
          .y = y.data};
}

// Whether `next` goes on with what `track` leaves.
bool GoesOn(const RowsOperand& track, const RowsOperand& next) {
  return track.out != nullptr && next.in == track.out && next.out == track.out && next.width == track.width &&
         next.num_rows == track.num_rows && next.in_is_bf16 == track.out_is_bf16 &&
         next.out_is_bf16 == track.out_is_bf16 &&
         (track.num_rows == 1 || (next.in_stride == track.out_stride && next.out_stride == track.out_stride));
}

// What head_rows.h makes of a launch, if it takes all of it: one track of many rows.
std::optional<HeadRows> HeadRowsOf(const RowTracks& p) {
  const RowTrack& track = p.tracks[0];
  const RowsOperand& rows = track.rows;
  if (p.num_tracks != 1 || rows.num_rows < kManyHeadRows || !rows.in_is_bf16 || !rows.out_is_bf16 ||
      !FitsHeadRows(rows.width, rows.in, rows.in_stride, rows.out, rows.out_stride)) {
    return std::nullopt;
  }
  HeadRows heads = {.in = static_cast<const uint16_t*>(rows.in),
                    .out = static_cast<uint16_t*>(rows.out),
                    .in_stride = rows.in_stride,
                    .out_stride = rows.out_stride,
                    .frequencies = nullptr,
                    .positions = nullptr,
                    .fault = p.fault,
                    .num_rows = rows.num_rows,
                    .width = static_cast<int>(rows.width),
                    .group = 1,
                    .eps = 0.0F,
                    .has_norm = false,
                    .has_rope = false,
                    .inverse = false,
                    .has_hadamard = false};
  for (const RowStep& step : std::span(track.steps, static_cast<size_t>(track.num_steps))) {
    if (step.kind == RowStepKind::kHeadRmsNorm && !heads.has_norm && !heads.has_rope && !heads.has_hadamard) {
      heads.has_norm = true;
      heads.eps = step.factor;
    } else if (step.kind == RowStepKind::kRope && !heads.has_rope && !heads.has_hadamard &&
               2 * step.num_columns == kRotatedColumns && step.group % kHeadRowsOfWarp == 0) {
      heads.has_rope = true;
      heads.inverse = step.inverse;
      heads.frequencies = step.weight;
      heads.positions = step.positions;
      heads.group = step.group;
    } else if (step.kind == RowStepKind::kHadamardFp4 && !heads.has_hadamard && rows.width == 128) {
      heads.has_hadamard = true;
    } else {
      return std::nullopt;
    }
  }
  return heads;
}

// The same of many_rows.h.
std::optional<ManyRows> ManyRowsOf(const RowTracks& p) {
  const RowTrack& track = p.tracks[0];
  const RowsOperand& rows = track.rows;
  if (p.num_tracks != 1 || rows.num_rows < kManyRows || !rows.in_is_bf16 || !rows.out_is_bf16 ||
      track.steps[0].kind != RowStepKind::kRmsNorm) {
    return std::nullopt;
  }
  ManyRows many = {.in = static_cast<const uint16_t*>(rows.in),
                   .out = static_cast<uint16_t*>(rows.out),
                   .in_stride = rows.in_stride,
                   .out_stride = rows.out_stride,
                   .num_rows = rows.num_rows,
                   .width = static_cast<int>(rows.width),
                   .eps = track.steps[0].factor,
                   .weight = track.steps[0].weight,
                   .positions = nullptr,
                   .frequencies = nullptr,
                   .group = 1,
                   .inverse = false,
                   .num_simulated = 0,
                   .runs = {},
                   .fault = p.fault};
  for (const RowStep& step : std::span(track.steps, static_cast<size_t>(track.num_steps)).subspan(1)) {
    const bool stored = many.runs.size > 0;
    if (step.kind == RowStepKind::kRope && many.positions == nullptr && many.num_simulated == 0 && !stored &&
        2 * step.num_columns == kManyRowsRotated) {
      many.positions = step.positions;
      many.frequencies = step.weight;
      many.group = step.group;
      many.inverse = step.inverse;
    } else if (step.kind == RowStepKind::kSimulateFp8 && many.num_simulated == 0 && !stored &&
               step.group == kManyRowsGroup && step.num_columns % kManyRowsGroup == 0) {
      many.num_simulated = step.num_columns;
    } else if (step.kind == RowStepKind::kStore && !stored && step.runs.size > 0) {
      many.runs = step.runs;
    } else {
      return std::nullopt;
    }
  }
  return HasManyRows(many) ? std::optional(many) : std::nullopt;
}

// The launch with one more step; false if it must be another launch.
bool Join(OpenRows& open, const RowsOperand& rows, const RowStep& step, std::span<const MemoryRange> touches,
          const void* beside) {
  RowTracks& p = open.params;
  if (p.num_tracks > 0 && (rows.width <= kMaxNarrowRow) != (p.max_width <= kMaxNarrowRow)) return false;
  int number = 0;
  while (number < p.num_tracks && !GoesOn(p.tracks[number].rows, rows)) ++number;
  if (number == kMaxTracks) return false;
  // Rows of many heads stay by themselves, and so do those of many tokens.
  const bool heads = step.kind == RowStepKind::kHeadRmsNorm || step.kind == RowStepKind::kRope ||
                     step.kind == RowStepKind::kHadamardFp4;
  if (number == p.num_tracks && number > 0 &&
      ((heads && rows.num_rows >= kManyHeadRows) || HeadRowsOf(p).has_value() ||
       (step.kind == RowStepKind::kRmsNorm && rows.num_rows >= kManyRows) || ManyRowsOf(p).has_value())) {
    return false;
  }
  std::vector<std::pair<int, MemoryRange>> touched;
  for (const MemoryRange& range : touches) touched.emplace_back(number, range);
  RowTrack& track = p.tracks[number];
  if (number < p.num_tracks) {
    const std::span<const RowStep> steps(track.steps, static_cast<size_t>(track.num_steps));
    const bool second_rope =
        step.kind == RowStepKind::kRope &&
        std::ranges::any_of(steps, [](const RowStep& s) { return s.kind == RowStepKind::kRope; });
    if (track.num_steps == kMaxTrackSteps || second_rope) return false;
  } else {
    touched.emplace_back(number,
                         RangeOfRows(rows.in, rows.in_stride, rows.width, rows.in_is_bf16, rows.num_rows));
    touched.emplace_back(number,
                         RangeOfRows(rows.out, rows.out_stride, rows.width, rows.out_is_bf16, rows.num_rows));
  }
  for (const auto& [track_of, range] : open.touched) {
    if (beside != nullptr && p.tracks[track_of].rows.out == beside) continue;
    for (const auto& [mine, next] : touched) {
      if (track_of != mine && Overlap(range, next)) return false;
    }
  }
  open.touched.insert(open.touched.end(), touched.begin(), touched.end());
  if (number == p.num_tracks) {
    track = {};
    track.rows = rows;
    std::ranges::fill(track.first, static_cast<signed char>(-1));
    p.first_blocks[p.num_tracks] = static_cast<int>(open.num_blocks);
    open.num_blocks += rows.num_rows;
    ++p.num_tracks;
  }
  AddToTrack(track, step);
  // Nothing else pools.
  if (track.steps[0].kind == RowStepKind::kPool && track.place != RowPlace::kPooledInRegisters) return false;
  p.max_width = std::max(p.max_width, static_cast<int>(rows.width));
  if (step.kind == RowStepKind::kRope) p.max_frequencies = std::max(p.max_frequencies, step.num_columns);
  return true;
}

uint64_t Launch(CudaContext& context, const OpenRows& rows, uint64_t before) {
  if (const std::optional<HeadRows> heads = HeadRowsOf(rows.params); heads.has_value())
    return LaunchHeadRows(context, *heads, before);
  if (const std::optional<ManyRows> many = ManyRowsOf(rows.params); many.has_value())
    return LaunchManyRows(context, *many, before);
  return LaunchRowTracks(context, rows.params, rows.num_blocks, before);
}

}  // namespace

Status AddRowStep(CudaContext& context, const RowsOperand& rows, const RowStep& step,
                  std::span<const MemoryRange> touches, const void* beside) {
  if (rows.num_rows == 0 || rows.width == 0) return {};
  if (rows.width > kMaxRowWidth) {
    return Unimplemented("this backend takes rows of up to 16384 elements, not " +
                         std::to_string(rows.width));
  }
  std::shared_ptr<OpenRows>& open = context.open_rows();
  if (open != nullptr && open->launch != 0) {
    auto joined = std::make_shared<OpenRows>(*open);
    if (Join(*joined, rows, step, touches, beside)) {
      joined->launch = Launch(context, *joined, open->launch);
      if (joined->launch != 0) {
        open = std::move(joined);
        context.Fused(FusionRule::kRowSteps);
        return {};
      }
    }
  }
  open = std::make_shared<OpenRows>();
  open->params = {};
  open->params.fault = context.fault();
  Join(*open, rows, step, touches, beside);
  open->launch = Launch(context, *open, 0);
  return {};
}

bool ContinuesRows(CudaContext& context, const RowsOperand& rows) {
  const std::shared_ptr<OpenRows>& open = context.open_rows();
  if (open == nullptr || !context.queue().IsLastLaunch(open->launch)) return false;
  const RowTracks& p = open->params;
  return std::ranges::any_of(std::span(p.tracks, static_cast<size_t>(p.num_tracks)),
                             [&](const RowTrack& track) { return GoesOn(track.rows, rows); });
}

// --- The ops ---------------------------------------------------------------------------------------------------------

namespace {

bool IsBf16(const TensorView& x) { return x.dtype == DType::kBF16; }

// Rows in place, `width` elements each, of a contiguous x.
RowsOperand InPlace(const TensorView& x, int64_t width) {
  return {.in = x.data,
          .in_stride = width,
          .out = x.data,
          .out_stride = width,
          .num_rows = x.num_elements() / width,
          .width = width,
          .in_is_bf16 = IsBf16(x),
          .out_is_bf16 = IsBf16(x)};
}

}  // namespace

Status RmsNorm(CudaContext& context, const ops::RmsNormArgs& args) {
  if (args.x.num_elements() == 0 || NormJoinsHcPre(context, args)) return {};
  const RowsOperand rows = {.in = args.x.data,
                            .in_stride = args.x.strides[0],
                            .out = args.y.data,
                            .out_stride = args.y.strides[0],
                            .num_rows = args.x.shape[0],
                            .width = args.x.shape[1],
                            .in_is_bf16 = IsBf16(args.x),
                            .out_is_bf16 = IsBf16(args.y)};
  return AddRowStep(
      context, rows,
      {.kind = RowStepKind::kRmsNorm, .factor = args.eps, .weight = args.weight.as<const float>()});
}

Status HeadRmsNorm(CudaContext& context, const ops::HeadRmsNormArgs& args) {
  if (args.x.num_elements() == 0) return {};
  const Plan<HeadsPath> plan = FirstFit(HeadNormRules(), HeadsOf(args.x, args.y), context.limits());
  context.Chose(plan);
  if (plan.kernel == HeadsPath::kManyHeads) return HeadRmsNormOfMany(context, args);
  RowsOperand rows = InPlace(args.x, args.x.shape[2]);
  rows.out = args.y.data;
  return AddRowStep(context, rows, {.kind = RowStepKind::kHeadRmsNorm, .factor = args.eps});
}

Status Rope(CudaContext& context, const ops::RopeArgs& args) {
  if (args.x.num_elements() == 0 || args.frequencies.shape[0] == 0) return {};
  if (RopeJoinsAttention(context, args)) return {};
  const Plan<HeadsPath> plan = FirstFit(RopeRules(), HeadsOf(args.x, args.x), context.limits());
  context.Chose(plan);
  if (plan.kernel == HeadsPath::kManyHeads) return RopeOfMany(context, args);
  return AddRowStep(context, InPlace(args.x, args.x.shape[2]),
                    {.kind = RowStepKind::kRope,
                     .inverse = args.inverse,
                     .num_columns = static_cast<int>(args.frequencies.shape[0]),
                     .group = static_cast<int>(args.x.shape[1]),
                     .weight = args.frequencies.as<const float>(),
                     .positions = args.positions.as<const int32_t>()});
}

Status SimulateFp8(CudaContext& context, const ops::SimulateFp8Args& args) {
  if (args.x.shape[0] == 0 || args.num_columns == 0) return {};
  RowsOperand rows = InPlace(args.x, args.x.shape[1]);
  rows.in_stride = rows.out_stride = args.x.strides[0];
  return AddRowStep(context, rows,
                    {.kind = RowStepKind::kSimulateFp8,
                     .num_columns = static_cast<int>(args.num_columns),
                     .group = static_cast<int>(args.group)});
}

Status HadamardFp4(CudaContext& context, const ops::HadamardFp4Args& args) {
  if (args.x.num_elements() == 0) return {};
  return AddRowStep(context, InPlace(args.x, args.x.shape[1]), {.kind = RowStepKind::kHadamardFp4});
}

}  // namespace dsv4::backend::cuda
