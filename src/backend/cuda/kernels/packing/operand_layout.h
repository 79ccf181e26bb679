// Activations, and weights, as the matrix kernels for many tokens read them (gemm_wgmma_tiles.cuh,
// gemm_tma_bf16.h). They are bf16, rounded to FP8 where the weight asks for it. Their columns are in the
// order in which a format's weights are widened, in the layout of wgmma's B operand:
//   [columns / 64][rows][64], the eight 16-byte pieces of 64 columns permuted, piece i of row r at i ^ r % 8.
// So many rows of 64 columns are one piece of memory, which TMA brings at once.
#pragma once

#include "backend/cuda/lowering/select/linear.h"
#include "backend/cuda/runtime/launch_context.h"
#include "backend/cuda/weights/device_weight.h"
#include "tensor/tensor.h"

namespace dsv4::backend::cuda {

// Columns of a block, and rows whose pieces are permuted together: a matrix's rows begin at multiples of
// them.
inline constexpr int64_t kPackedCols = 64;
inline constexpr int64_t kPackedRows = 8;

struct PackedRows {
  const uint16_t* data = nullptr;
  int64_t num_rows = 0;  // A multiple of kPackedRows; those that nothing was packed into are unspecified.
};

// Source of packed rows.
struct RowSource {
  const void* x;
  DType dtype;       // kBF16 or kF32.
  int64_t stride;    // Elements between rows.
  int64_t num_rows;  // To be packed.
  // Null: row r is row r of x. Else rows with origins[r] < 0 are left out, and the others are row origins[r]
  // / divisor, or row r where divisor is 0.
  const int32_t* origins = nullptr;
  int divisor = 1;
  // Not null: rows of x, of bf16, are those of gate and up one behind the other. Packed is their activation
  // (swiglu.cuh) with row weight row_weights[origins[r]].
  const float* row_weights = nullptr;
  float limit = 0.0F;
  // Scales, where rows are kMmaMxFp8's weights.
  const uint8_t* scales = nullptr;
  int scale_cols = 0;
  int block_rows_log2 = 0;
};

// Calls f<kKind>() for a kind that is not general.
template <typename F>
void WithMmaKind(MatmulKind kind, F&& f) {
  switch (kind) {
    case MatmulKind::kMmaBf16:
      return f.template operator()<MatmulKind::kMmaBf16>();
    case MatmulKind::kMmaFp8:
      return f.template operator()<MatmulKind::kMmaFp8>();
    case MatmulKind::kMmaMxFp8:
      return f.template operator()<MatmulKind::kMmaMxFp8>();
    case MatmulKind::kMmaMxFp4:
      return f.template operator()<MatmulKind::kMmaMxFp4>();
    case MatmulKind::kMmaMxFp4Stored:
      return f.template operator()<MatmulKind::kMmaMxFp4Stored>();
    case MatmulKind::kMmaNvFp4:
      return f.template operator()<MatmulKind::kMmaNvFp4>();
    case MatmulKind::kGeneral:
      return;
  }
}

// Scratch of the op that runs. `group`: columns that share a scale when rows are rounded to FP8, 32 or 128,
// or 0. `kind` is not kGeneral; num_rows is a multiple of `row_multiple`, itself one of kPackedRows.
Result<PackedRows> Pack(LaunchContext& context, const RowSource& source, int64_t cols, int group,
                        MatmulKind kind, int64_t row_multiple = kPackedRows);

// The same of a linear's tokens, for an op that packs nothing before. If the last launch is a linear's that
// has read just these, they lie where it found them, and nothing is packed. Neighbouring linears of the same
// tokens pack them once.
Result<PackedRows> PackTokens(LaunchContext& context, const RowSource& source, int64_t cols, int group,
                              MatmulKind kind, int64_t row_multiple = kPackedRows);
// The op's last launch reads them, and writes y, of rows y_stride elements apart. Arguments as PackTokens',
// and what it gave.
void KeepPackedTokens(LaunchContext& context, const RowSource& source, int64_t cols, int group,
                      MatmulKind kind, const PackedRows& packed, const TensorView& y, int64_t y_stride);

Result<PackedRows> PackWeight(LaunchContext& context, const DeviceWeight& weight, int64_t num_rows);

}  // namespace dsv4::backend::cuda
