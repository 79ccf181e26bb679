// Which kernel multiplies: linear and grouped_linear.
#pragma once

#include <span>
#include <vector>

#include "backend/cuda/lowering/rule.h"
#include "backend/cuda/weights/device_weight.h"

namespace dsv4::backend::cuda {

// x [num_tokens, num_groups * weight.cols], rows x_stride apart; group g multiplies rows [g, g + 1) * rows /
// num_groups.
struct LinearShape {
  DeviceWeight weight;
  int64_t num_groups = 1;
  int64_t num_tokens = 0;
  const void* x = nullptr;  // Looked at for its alignment only.
  DType x_dtype = DType::kBF16;
  int64_t x_stride = 0;

  int64_t rows_per_group() const { return weight.rows / num_groups; }
};

enum class LinearPath : uint8_t {
  kBlockScaled,
  kGemmTmaFp8,
  kGemvStream,
  kGemmSplitK,
  kGemmTmaBf16,
  kGemmWgmma,
  kGemmMma,
  kGemmFma,
};

std::span<const Rule<LinearPath, LinearShape>> LinearRules();
Plan<LinearPath> ChooseLinear(const LinearShape& shape, const DeviceLimits& device);

// Whether both gemm_splitk_wgmma and gemm_wgmma take it, so that the fewer microseconds by estimate choose.
bool TakesSplitKOrWgmma(const LinearShape& shape, const DeviceLimits& device);
// Launches of linears that take the same activations, by index.
struct LinearLaunches {
  std::vector<size_t> splitk;
  std::vector<std::vector<size_t>> wgmma;
};
// Fewest microseconds together, by estimate. Both kernels take each linear, and one launch of split-K all.
// `first_in_splitk`: the first is split-K's.
LinearLaunches ChooseLinears(std::span<const LinearShape> linears, bool first_in_splitk,
                             const DeviceLimits& device);
// Whether one launch of gemm_wgmma has both: they differ in their rows only.
bool ShareWgmma(const DeviceWeight& a, const DeviceWeight& b);

// Matrices of one launch.
inline constexpr int64_t kMaxFusedMatrices = 8;

// Tokens of the thresholds.
inline constexpr int64_t kMaxGemvTokens = 8;
inline constexpr int64_t kMaxSplitKTokens = 895;
inline constexpr int64_t kMinWgmmaTokens = 65;      // From which packing pays,
inline constexpr int64_t kMinTallWgmmaTokens = 33;  // and where every SM has a tile of rows.
inline constexpr int64_t kMinTmaTokens = 896;
inline constexpr int64_t kMinFp8Tokens = 256;  // Threshold of Fp8Products::kMany.

// --- What a weight must be, for these kernels and for those of experts ----------------------------------------------

// Rows of a tile.
inline constexpr int kGemmRows = 128;

// sm100/block_scaled: whether this mode has products for the weight.
bool HasBlockScaled(BlockScaledMode mode, const DeviceWeight& weight);
// Whole stages of columns, and activations that no other format rounds.
inline bool TakesNvFp4(BlockScaledMode mode, int64_t cols, bool quantized_x) {
  return mode == BlockScaledMode::kFp4 && !quantized_x && cols % 256 == 0;
}

// gemm_wgmma: whole stages of 128 columns, no more of them ahead than a tile has, and segments that end
// between blocks of 64.
bool FitsWgmma(const DeviceWeight& weight);

// The columns of a segment: a matrix is summed in eight of them, each in the order of its columns, in every
// kernel.
int SegmentColsOf(MatmulKind kind, int64_t cols);

// kernels/packing/operand_layout.h: activations and weights that can be packed as operands of wgmma.
inline bool CanPack(const void* x, int64_t stride, int64_t cols) {
  return cols % 128 == 0 && stride % 8 == 0 && IsAligned(x, 16);
}
inline bool CanPackWeight(const DeviceWeight& weight) {
  return (weight.kind == MatmulKind::kMmaBf16 || weight.kind == MatmulKind::kMmaFp8 ||
          weight.kind == MatmulKind::kMmaMxFp8) &&
         weight.cols % 128 == 0 && IsAligned(weight.data, 16);
}
// kernels/packing/operand_layout_fp8.h: the same for FP8.
inline bool CanPackFp8Weight(const DeviceWeight& weight) {
  return weight.kind == MatmulKind::kMmaFp8 && weight.cols % 128 == 0 && IsAligned(weight.data, 16) &&
         !RoundsFine(weight);
}

}  // namespace dsv4::backend::cuda
