// The ops linear and grouped_linear: which kernel multiplies, and what those for a few tokens record.
#include "backend/cuda/kernels/gemm/linear.h"

#include "backend/cuda/kernels/gemm/gemm_tma_bf16.h"
#include "backend/cuda/kernels/gemm/gemm_tma_fp8.h"
#include "backend/cuda/kernels/gemm/gemm_wgmma.h"
#include "backend/cuda/kernels/sm100/block_scaled.h"
#include "backend/cuda/lowering/launch/lowering.h"
#include "backend/cuda/lowering/select/linear.h"
#include "backend/cuda/runtime/cuda_ops.h"

namespace dsv4::backend::cuda {
namespace {

void RecordLinear(CudaContext& context, const LinearWork& work) {
  const int64_t last_group = work.num_groups - 1;
  const MemoryRange x = RangeOfRows(
      work.x, work.x_stride, last_group * work.x_group_stride + work.weight.cols, true, work.num_tokens);
  const MemoryRange y =
      RangeOfRows(work.y, work.y_stride, last_group * work.y_group_stride + work.rows_per_group,
                  work.y_is_bf16, work.num_tokens);
  context.lowering().Record({.kind = work.num_groups == 1 ? OpKind::kLinear : OpKind::kGroupedLinear,
                             .accesses = {.reads = {{x}}, .writes = {{y}}},
                             .work = work});
}

// y = x W^T, or group by group: x [num_tokens, num_groups * cols] and y [num_tokens, num_groups * rows /
// num_groups] with rows x_stride and y_stride apart. Rows of more than one group follow each other without
// gaps.
Status Multiply(CudaContext& context, const Weight& stored, int64_t num_groups, const TensorView& x,
                int64_t x_stride, const TensorView& y, int64_t y_stride) {
  const int64_t num_tokens = x.shape[0];
  if (num_tokens == 0) return {};
  const DeviceWeight weight = MakeDeviceWeight(stored, x.dtype);
  const int64_t rows_per_group = weight.rows / num_groups;
  const bool y_is_bf16 = y.dtype == DType::kBF16;
  const int64_t row_stride = num_groups == 1 ? x_stride : weight.cols;
  const LinearShape shape = {.weight = weight,
                             .num_groups = num_groups,
                             .num_tokens = num_tokens,
                             .x = x.data,
                             .x_dtype = x.dtype,
                             .x_stride = x_stride};
  const Plan<LinearPath> plan = ChooseLinear(shape, context.limits());
  context.Chose(plan);
  const bool either = num_groups == 1 && TakesSplitKOrWgmma(shape, context.limits());
  const auto record = [&] {
    RecordLinear(context, {.path = plan.kernel,
                           .either = either,
                           .weight = weight,
                           .x = x.as<const uint16_t>(),
                           .x_stride = x_stride,
                           .x_group_stride = weight.cols,
                           .y = y.data,
                           .y_stride = y_stride,
                           .y_group_stride = rows_per_group,
                           .y_is_bf16 = y_is_bf16,
                           .rows_per_group = rows_per_group,
                           .num_groups = num_groups,
                           .num_tokens = num_tokens});
    return Status();
  };
  const GemmArgs gemm = {
      .weight = weight, .num_groups = num_groups, .x = x, .x_stride = x_stride, .y = y, .y_stride = y_stride};
  switch (plan.kernel) {
    case LinearPath::kBlockScaled: {
      DSV4_ASSIGN_OR_RETURN_STATUS(
          const BlockScaledRows rows,
          RoundBlockScaled(context, weight, x.data, x.dtype, row_stride, num_tokens * num_groups));
      MultiplyBlockScaled(context, {.weight = weight,
                                    .x = rows,
                                    .num_tokens = static_cast<int>(num_tokens),
                                    .num_groups = static_cast<int>(num_groups),
                                    .rows = static_cast<int>(rows_per_group),
                                    .y = y.data,
                                    .y_stride = y_stride,
                                    .y_group_stride = rows_per_group,
                                    .y_is_bf16 = y_is_bf16});
      return {};
    }
    case LinearPath::kGemmTmaFp8:
      return GemmTmaFp8(context, gemm);
    case LinearPath::kGemvStream:
    case LinearPath::kGemmSplitK:
      return record();
    case LinearPath::kGemmTmaBf16:
      return GemmTmaBf16(context, gemm);
    case LinearPath::kGemmWgmma:
      return either ? record() : GemmWgmma(context, gemm);
    case LinearPath::kGemmMma:
    case LinearPath::kGemmFma:
      break;
  }
  return LinearOfAny(context, gemm);
}

}  // namespace

Status Linear(CudaContext& context, const ops::LinearArgs& args) {
  return Multiply(context, *args.weight, 1, args.x, args.x.strides[0], args.y, args.y.strides[0]);
}

Status GroupedLinear(CudaContext& context, const ops::GroupedLinearArgs& args) {
  const int64_t num_groups = args.x.shape[1];
  return Multiply(context, *args.weight, num_groups, args.x, num_groups * args.weight->cols, args.y,
                  num_groups * args.y.shape[2]);
}

}  // namespace dsv4::backend::cuda
