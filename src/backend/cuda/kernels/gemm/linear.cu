// linear and grouped_linear of any shape: mma where products are exact in bf16, fp32 multiply-adds otherwise.
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/gemm/gemm_fma.cuh"
#include "backend/cuda/kernels/gemm/gemm_mma.cuh"
#include "backend/cuda/kernels/gemm/linear.h"
#include "backend/cuda/kernels/packing/activations.h"

namespace dsv4::backend::cuda {
namespace {

// One matrix, or one a group: group g multiplies rows [g, g + 1) * rows_per_group of the weight with its own
// slice of x.
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
void LaunchMma(LaunchContext& context, const MatmulParams& params, int64_t num_groups) {
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

void Launch(LaunchContext& context, const MatmulParams& params, DType x_dtype, int64_t num_groups) {
  switch (params.weight.kind) {
    case MatmulKind::kMmaBf16:
      return LaunchMma<MatmulKind::kMmaBf16>(context, params, num_groups);
    case MatmulKind::kMmaFp8:
      return LaunchMma<MatmulKind::kMmaFp8>(context, params, num_groups);
    case MatmulKind::kMmaMxFp8:
      return LaunchMma<MatmulKind::kMmaMxFp8>(context, params, num_groups);
    case MatmulKind::kMmaMxFp4:
      return LaunchMma<MatmulKind::kMmaMxFp4>(context, params, num_groups);
    case MatmulKind::kMmaMxFp4Stored:
      return LaunchMma<MatmulKind::kMmaMxFp4Stored>(context, params, num_groups);
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

}  // namespace

Status LinearOfAny(LaunchContext& context, const GemmArgs& args) {
  const DeviceWeight& weight = args.weight;
  const int64_t num_groups = args.num_groups;
  const int64_t num_tokens = args.x.shape[0];
  const int64_t rows_per_group = weight.rows / num_groups;
  const int64_t row_stride = num_groups == 1 ? args.x_stride : weight.cols;
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const ActivationRows rows,
      PrepareActivations(context, args.x.data, args.x.dtype, row_stride, num_tokens * num_groups, weight.cols,
                         weight.x_group, weight.kind));
  const MatmulParams params = {.weight = weight,
                               .x = rows.data,
                               .x_stride = num_groups * rows.stride,
                               .x_group_stride = rows.stride,
                               .y = args.y.data,
                               .y_stride = args.y_stride,
                               .y_group_stride = rows_per_group,
                               .y_is_bf16 = args.y.dtype == DType::kBF16,
                               .rows_per_group = rows_per_group,
                               .num_tokens = num_tokens};
  Launch(context, params, rows.dtype, num_groups);
  return {};
}

}  // namespace dsv4::backend::cuda
