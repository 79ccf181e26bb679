// Records of ops that turn rows into rows.
#include "backend/cuda/lowering/record/rows.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "backend/cuda/kernels/elementwise/elementwise.h"
#include "backend/cuda/kernels/rows/many_heads.h"
#include "backend/cuda/lowering/launch/lowering.h"
#include "backend/cuda/lowering/select/rows.h"
#include "backend/cuda/runtime/cuda_ops.h"

namespace dsv4::backend::cuda {

Status AddRowStep(CudaContext& context, const RowsOperand& rows, const RowStep& step,
                  std::vector<MemoryRange> touches, const void* beside) {
  if (rows.num_rows == 0 || rows.width == 0) return {};
  if (rows.width > kMaxRowWidth) {
    return Unimplemented("this backend takes rows of up to 16384 elements, not " +
                         std::to_string(rows.width));
  }
  context.lowering().Record(
      {.kind = OpKind::kRowStep, .accesses = {}, .work = RowsWork{rows, step, std::move(touches), beside}});
  return {};
}

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

bool IsInPlace(const ops::RmsNormArgs& args) {
  return args.x.data == args.y.data && args.x.dtype == args.y.dtype && args.x.strides[0] == args.x.shape[1] &&
         args.y.strides[0] == args.x.shape[1];
}

RecordedOp RecordNorm(const ops::RmsNormArgs& args) {
  const Access x = {{args.x.data, static_cast<size_t>(args.x.num_bytes())}, Division::kTokenColumns};
  return {.kind = OpKind::kNorm,
          .accesses = {.reads = {x, {{args.weight.data, static_cast<size_t>(args.weight.num_bytes())}}},
                       .writes = {x}},
          .work = NormWork{.x = args.x.data,
                           .dtype = args.x.dtype,
                           .shape = args.x.shape,
                           .weight = args.weight.as<const float>(),
                           .eps = args.eps}};
}

RecordedOp RecordRope(CudaContext& context, const ops::RopeArgs& args) {
  const auto range = [](const TensorView& tensor) {
    return MemoryRange{tensor.data, static_cast<size_t>(tensor.num_bytes())};
  };
  return {.kind = OpKind::kRope,
          .accesses = {.reads = {{range(args.frequencies)}, {range(args.positions)}},
                       .writes = {{range(args.x), Division::kHeads}}},
          .work = RopeWork{.x = args.x.data,
                           .dtype = args.x.dtype,
                           .shape = args.x.shape,
                           .rotation = {.frequencies = args.frequencies.as<const float>(),
                                        .positions = args.positions.as<const int32_t>(),
                                        .fault = context.fault(),
                                        .num_frequencies = static_cast<int>(args.frequencies.shape[0]),
                                        .inverse = args.inverse}}};
}

// hadamard_fp4 of rows that are not rotated.
Status RoundFp4(CudaContext& context, const ops::HadamardFp4Args& args) {
  const Plan<RoundPath> plan = FirstFit(RoundRules(),
                                        {.dtype = args.x.dtype,
                                         .num_rows = args.x.shape[0],
                                         .width = args.x.shape[1],
                                         .group = args.group,
                                         .x = args.x.data},
                                        context.limits());
  context.Chose(plan);
  if (plan.kernel == RoundPath::kEights) return RoundFp4OfMany(context, args);
  return AddRowStep(
      context, InPlace(args.x, args.x.shape[1]),
      {.kind = RowStepKind::kRoundFp4, .scale = args.scale, .group = static_cast<int>(args.group)});
}

}  // namespace

Status RmsNorm(CudaContext& context, const ops::RmsNormArgs& args) {
  if (args.x.num_elements() == 0) return {};
  if (IsInPlace(args) && context.lowering().Fuse(RecordNorm(args))) return {};
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
  if (context.lowering().Fuse(RecordRope(context, args))) return {};
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

Status Scale(CudaContext& context, const ops::ScaleArgs& args) {
  const int64_t count = args.x.num_elements();
  if (count == 0) return {};
  const Plan<ScalePath> plan = FirstFit(ScaleRules(), {.count = count}, context.limits());
  context.Chose(plan);
  if (plan.kernel == ScalePath::kEach) {
    LaunchScale(context, args);
    return {};
  }
  // As one row, beside others.
  const bool is_bf16 = IsBf16(args.x);
  return AddRowStep(context,
                    {.in = args.x.data,
                     .in_stride = count,
                     .out = args.y.data,
                     .out_stride = count,
                     .num_rows = 1,
                     .width = count,
                     .in_is_bf16 = is_bf16,
                     .out_is_bf16 = is_bf16},
                    {.kind = RowStepKind::kScale, .factor = args.factor});
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
  if (!args.rotate) return RoundFp4(context, args);
  if (args.group != ops::kIndexerFp4Group || args.scale != CacheScale::kE8m0) {
    return Unimplemented(fmt::format(
        "op hadamard_fp4: rotated rows in groups of {}{}, this backend takes groups of {} with e8m0 scales",
        args.group, args.scale == CacheScale::kE4m3 ? " with e4m3 scales" : "", ops::kIndexerFp4Group));
  }
  return AddRowStep(context, InPlace(args.x, args.x.shape[1]), {.kind = RowStepKind::kHadamardFp4});
}

}  // namespace dsv4::backend::cuda
