// Kernel that rounds activations to FP8 groups and packs them as bf16 rows of whole tiles.
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/packing/activations.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kGroup = static_cast<int>(kActivationBlock);
static_assert(kActivationPadding % kGroup == 0);

// One warp a run of 128 columns of a row, which is a group or, each lane's i-th value being one's, four of
// them (kFine). Columns past the end are zero.
template <typename In, bool kFine>
__global__ void ActivationsPackKernel(const In* x, int64_t stride, uint16_t* packed, int64_t num_rows,
                                      int64_t cols, int64_t padded_cols, bool quantize) {
  BeginKernel();
  const int64_t groups = padded_cols / kGroup;
  const int64_t index = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (index >= num_rows * groups) return;
  const int64_t row = index / groups;
  const int64_t begin = index % groups * kGroup;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float values[kGroup / 32];
  float max = 0.0F;
#pragma unroll
  for (int i = 0; i < kGroup / 32; ++i) {
    const int64_t col = begin + lane + i * 32;
    values[i] = col < cols ? ToFloat(x[row * stride + col]) : 0.0F;
    max = fmaxf(max, fabsf(values[i]));
  }
  float scale = quantize && !kFine ? Fp8GroupScale(WarpMax(max)) : 1.0F;
#pragma unroll
  for (int i = 0; i < kGroup / 32; ++i) {
    const int64_t col = begin + lane + i * 32;
    if constexpr (kFine) scale = Fp8GroupScale(WarpMax(fabsf(values[i])));
    const float value = quantize && col < cols ? RoundToFp8Grid(values[i], scale) : values[i];
    packed[row * padded_cols + col] = Bf16FromFloat(value);
  }
}

}  // namespace

Result<ActivationRows> PrepareActivations(LaunchContext& context, const void* x, DType dtype, int64_t stride,
                                          int64_t num_rows, int64_t cols, int group, MatmulKind kind) {
  if (group == 0) {
    if (kind == MatmulKind::kGeneral) return ActivationRows{x, stride, dtype};
    const bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0 && (stride % 8 == 0 || num_rows == 1);
    if (dtype == DType::kBF16 && aligned && cols % kActivationPadding == 0)
      return ActivationRows{x, stride, dtype};
  }
  const int64_t padded = CeilDiv(cols, kActivationPadding) * kActivationPadding;
  DSV4_ASSIGN_OR_RETURN(uint16_t* const packed, context.Scratch<uint16_t>(num_rows * padded));
  const int64_t groups = num_rows * (padded / kGroup);
  WithElement(dtype, [&]<typename In>(In*) {
    const auto kernel = group == 32 ? ActivationsPackKernel<In, true> : ActivationsPackKernel<In, false>;
    context.Launch(kernel, static_cast<unsigned>(CeilDiv(groups, kWarps)), 32 * kWarps, 0,
                   static_cast<const In*>(x), stride, packed, num_rows, cols, padded, group != 0);
  });
  return ActivationRows{packed, padded, DType::kBF16};
}

}  // namespace dsv4::backend::cuda
