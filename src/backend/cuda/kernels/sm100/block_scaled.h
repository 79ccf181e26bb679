// linear, grouped_linear and routed_experts on Blackwell's tensor cores, which takes FP4 and FP8 weights as
// they are stored and applies their block scales itself (tcgen05.cuh). NEVER RUN: compiled for sm_100a and
// read, no more; off unless CudaOptions::block_scaled asks for it on a device of compute capability 10.0.
//
// Product y [rows of x, rows of W] = x W^T, all sums in the unit's fp32:
//   FP8 and MXFP4 weights whose activations are rounded to FP8: e4m3 times e4m3 or e2m1, power-of-two scales of both per 32
//     columns. The contract's rounding points, no others: the numerics of the release.
//   NVFP4 weights, in BlockScaledMode::kFp4 alone: e2m1 times e2m1, e4m3 scales of both per 16 columns.
//     Activations are rounded to NVFP4 with a factor of their own for every row, max / 2688. The result
//     differs from W4A16: an activation is about 9.5 % off, where FP8 is 2.6 % off (quantization.md 1.6). A
//     row with a NaN or an infinity gives NaN.
// A result depends on its row of x and its row of W alone: there is one kernel for every number of tokens.
#pragma once

#include "backend/cuda/kernels/moe/expert_tile.h"
#include "backend/cuda/runtime/launch_context.h"
#include "backend/cuda/weights/device_weight.h"

namespace dsv4::backend::cuda {

// Rows of x as the unit reads them; scratch of the op that runs.
struct BlockScaledRows {
  const uint8_t* codes = nullptr;   // [num_rows, cols] e4m3, or [num_rows, cols / 2] e2m1
  const uint8_t* scales = nullptr;  // [num_rows, cols / 32] e8m0, or [num_rows, cols / 16] e4m3
  const float* factors = nullptr;   // e2m1: [num_rows]
};

inline constexpr int kBlockScaledTokens = 128;  // At most, of a tile.

// One launch. Weights are one matrix, of whose rows group g takes [g, g + 1) * rows, or matrix first_matrix +
// g of every expert.
struct BlockScaledProduct {
  DeviceWeight weight;                    // Form of experts: what all have in common.
  const DeviceWeight* experts = nullptr;  // [num_experts, 3]; null: there is one matrix.
  int first_matrix = 0;
  // Tiles of experts: [num_tiles], of `order`. Assignment a is row a / divisor of x and row a of y.
  const ExpertTile* tiles = nullptr;
  int num_tiles = 0;
  const int32_t* order = nullptr;
  int divisor = 1;
  BlockScaledRows x;   // One matrix: row t * num_groups + g is token t of group g, and row t of y.
  int num_tokens = 0;  // Tokens of one matrix.
  int num_groups = 1;
  int rows = 0;
  void* y = nullptr;
  int64_t y_stride = 0;        // Elements between rows,
  int64_t y_group_stride = 0;  // between groups.
  bool y_is_bf16 = false;
};

// Whether the mode takes a weight of NVFP4, whose codes prepare_weight then leaves in the order of the file;
// other kernels multiply it slowly (MatmulKind::kGeneral).
bool WantsNvFp4AsStored(BlockScaledMode mode, const Weight& weight);

// x: [num_rows, cols] of bf16 or f32, rows `stride` elements apart, rounded as `weight` wants it.
Result<BlockScaledRows> RoundBlockScaled(LaunchContext& context, const DeviceWeight& weight, const void* x,
                                         DType dtype, int64_t stride, int64_t num_rows);

// HasBlockScaled(mode, weight), and x of RoundBlockScaled for it.
void MultiplyBlockScaled(LaunchContext& context, const BlockScaledProduct& product);

}  // namespace dsv4::backend::cuda
