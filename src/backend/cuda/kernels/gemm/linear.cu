// linear and grouped_linear.
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/gemm/gemm_fma.cuh"
#include "backend/cuda/kernels/gemm/gemm_mma.cuh"
#include "backend/cuda/kernels/gemm/gemm_tma_bf16.h"
#include "backend/cuda/kernels/gemm/gemm_tma_fp8.h"
#include "backend/cuda/kernels/gemm/gemm_wgmma.h"
#include "backend/cuda/kernels/sm100/block_scaled.h"
#include "backend/cuda/lowering/record/linear.h"
#include "backend/cuda/lowering/select/linear.h"
#include "backend/cuda/weights/activations.h"

namespace dsv4::backend::cuda {
namespace {

// One matrix, or one a group: group g multiplies rows [g, g + 1) * rows_per_group of the weight with its own slice of x.
struct MatmulParams {
  DeviceWeight weight;
  const void* x;
  int64_t x_stride;        // Between tokens,
  int64_t x_group_stride;  // between groups.
  void* y;
  int64_t y_stride;
  int64_t y_group_stride;
  bool y_is_bf16;
  int64_t rows_per_group;
  int64_t num_tokens;
};

__device__ __forceinline__ void StoreOutput(const MatmulParams& p, int64_t place, float value) {
  if (p.y_is_bf16) {
    static_cast<uint16_t*>(p.y)[place] = Bf16FromFloat(value);
  } else {
    static_cast<float*>(p.y)[place] = value;
  }
}

// Grid: token tiles, row tiles, groups. Blocks that share weights run side by side.
template <MatmulKind kKind, int kTokenTiles>
__global__ void __launch_bounds__(kMatmulThreads) LinearMmaKernel(const __grid_constant__ MatmulParams p) {
  BeginKernel();
  constexpr int kTokens = kTokenTiles * kTokensPerTile;
  const int64_t group = blockIdx.z;
  const int64_t group_begin = group * p.rows_per_group;
  const int64_t first_token = blockIdx.x * int64_t{kTokens};
  const auto* x = static_cast<const uint16_t*>(p.x) + group * p.x_group_stride + first_token * p.x_stride;
  const int64_t y_begin = group * p.y_group_stride + first_token * p.y_stride - group_begin;
  MultiplyTile<kKind, kTokenTiles>(
      p.weight, group_begin + blockIdx.y * int64_t{kTileRows}, group_begin + p.rows_per_group,
      static_cast<int>(min(int64_t{kTokens}, p.num_tokens - first_token)),
      [&](int token) { return x + token * p.x_stride; },
      [&](int token, int64_t row, float sum) { StoreOutput(p, y_begin + token * p.y_stride + row, sum); });
}

template <typename X>
__global__ void __launch_bounds__(kMatmulThreads) LinearFmaKernel(const __grid_constant__ MatmulParams p) {
  BeginKernel();
  const int64_t group = blockIdx.z;
  const int64_t row_in_group = blockIdx.y * int64_t{kGeneralRows} + threadIdx.x / 32;
  if (row_in_group >= p.rows_per_group) return;
  const int64_t first_token = blockIdx.x * int64_t{kGeneralTokens};
  const X* x = static_cast<const X*>(p.x) + group * p.x_group_stride + first_token * p.x_stride;
  MultiplyRow<X>(
      p.weight, group * p.rows_per_group + row_in_group,
      static_cast<int>(min(int64_t{kGeneralTokens}, p.num_tokens - first_token)),
      [&](int token) { return x + token * p.x_stride; },
      [&](int token, float sum) {
        StoreOutput(p, group * p.y_group_stride + (first_token + token) * p.y_stride + row_in_group, sum);
      });
}

template <MatmulKind kKind>
void LaunchMma(CudaContext& context, const MatmulParams& params, int64_t num_groups) {
  const auto launch = [&]<int kTokenTiles>() {
    const dim3 grid(static_cast<unsigned>(CeilDiv(params.num_tokens, kTokenTiles * kTokensPerTile)),
                    static_cast<unsigned>(CeilDiv(params.rows_per_group, kTileRows)),
                    static_cast<unsigned>(num_groups));
    context.Launch(LinearMmaKernel<kKind, kTokenTiles>, grid, kMatmulThreads, 0, params);
  };
  if (params.num_tokens <= kTokensPerTile) {
    launch.template operator()<1>();
  } else if (params.num_tokens <= 4 * kTokensPerTile) {
    launch.template operator()<4>();
  } else {
    launch.template operator()<8>();
  }
}

void Launch(CudaContext& context, const MatmulParams& params, DType x_dtype, int64_t num_groups) {
  switch (params.weight.kind) {
    case MatmulKind::kMmaBf16:
      return LaunchMma<MatmulKind::kMmaBf16>(context, params, num_groups);
    case MatmulKind::kMmaFp8:
      return LaunchMma<MatmulKind::kMmaFp8>(context, params, num_groups);
    case MatmulKind::kMmaMxFp4:
      return LaunchMma<MatmulKind::kMmaMxFp4>(context, params, num_groups);
    case MatmulKind::kMmaNvFp4:
      return LaunchMma<MatmulKind::kMmaNvFp4>(context, params, num_groups);
    case MatmulKind::kGeneral:
      break;
  }
  const dim3 grid(static_cast<unsigned>(CeilDiv(params.num_tokens, kGeneralTokens)),
                  static_cast<unsigned>(CeilDiv(params.rows_per_group, kGeneralRows)),
                  static_cast<unsigned>(num_groups));
  WithElement(x_dtype,
              [&]<typename X>(X*) { context.Launch(LinearFmaKernel<X>, grid, kMatmulThreads, 0, params); });
}

// y = x W^T, or group by group: x [num_tokens, num_groups * cols] and y [num_tokens, num_groups * rows / num_groups] with rows
// x_stride and y_stride apart. Rows of more than one group follow each other without gaps.
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
  const GemmArgs many = {
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
      return GemmTmaFp8(context, many);
    case LinearPath::kGemvStream:
    case LinearPath::kGemmSplitK:
      RecordLinear(context, {.path = plan.kernel,
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
      return {};
    case LinearPath::kGemmTmaBf16:
      return GemmTmaBf16(context, many);
    case LinearPath::kGemmWgmma:
      return GemmWgmma(context, many);
    case LinearPath::kGemmMma:
    case LinearPath::kGemmFma:
      break;
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const ActivationRows rows,
      PrepareActivations(context, x.data, x.dtype, row_stride, num_tokens * num_groups, weight.cols,
                         weight.quantized_x, weight.kind));
  const MatmulParams params = {.weight = weight,
                               .x = rows.data,
                               .x_stride = num_groups * rows.stride,
                               .x_group_stride = rows.stride,
                               .y = y.data,
                               .y_stride = y_stride,
                               .y_group_stride = rows_per_group,
                               .y_is_bf16 = y_is_bf16,
                               .rows_per_group = rows_per_group,
                               .num_tokens = num_tokens};
  Launch(context, params, rows.dtype, num_groups);
  return {};
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
