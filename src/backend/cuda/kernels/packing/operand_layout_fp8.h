// Activations, and weights, as the matrix kernels in FP8 read them (gemm_tma_fp8.h, grouped_gemm_fp8.h). They
// are codes of e4m3 in the layout of wgmma's operands, columns in their own order:
//   [columns / 128][rows][128], the eight 16-byte pieces of 128 columns permuted, piece i of row r at i ^ r % 8.
// So many rows of 128 columns, which share a scale, are one piece of memory, which TMA brings at once.
#pragma once

#include "backend/cuda/kernels/packing/operand_layout.h"
#include "backend/cuda/runtime/launch_context.h"
#include "backend/cuda/weights/device_weight.h"

namespace dsv4::backend::cuda {

inline constexpr int64_t kPackedFp8Cols = 128;

struct PackedFp8 {
  const uint8_t* codes = nullptr;
  const float* scales =
      nullptr;           // [columns / 128][rows], powers of two; null for weights, which have their own.
  int64_t num_rows = 0;  // Rows that nothing was packed into are unspecified, codes and scales.
};

// Rows that CanPack takes, rounded as the release rounds them in front of FP8 and MXFP4 weights
// (formats/quantize.h): the codes and scales that RoundToFp8Groups multiplies. NaN stays NaN. Scratch of the
// op that runs; `row_multiple` is a multiple of kPackedRows.
Result<PackedFp8> PackFp8(LaunchContext& context, const RowSource& source, int64_t cols,
                          int64_t row_multiple = kPackedRows);

Result<PackedFp8> PackFp8Weight(LaunchContext& context, const DeviceWeight& weight, int64_t num_rows);

}  // namespace dsv4::backend::cuda
