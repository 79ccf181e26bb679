// A stored weight as kernels see it, and the kind of products that it takes.
//
// The kind depends on the weight and on the activations' dtype alone. Then lowering/select/linear.cc chooses
// a kernel of that kind, also by the number of tokens. All of them give a row the same bits
// (docs/cuda/numerics.md has the exceptions).
#pragma once

#include <bit>
#include <cstdint>

#include "formats/weight.h"

namespace dsv4::backend::cuda {

// Weights times bf16 activations on tensor cores, weights widened in registers. All else takes fp32
// multiply-adds: fp32 activations, F32 and F16 weights, odd block sizes, NVFP4 in the order of the file. So do
// large E8M0 scales of 32 columns (kLargestOfTwo). MXFP4 is in the order of e2m1_order.h too, but as it is stored
// where products in FP8 or with block scales read it.
enum class MatmulKind : uint8_t {
  kMmaBf16,
  kMmaFp8,
  kMmaMxFp8,
  kMmaMxFp4,
  kMmaMxFp4Stored,
  kMmaNvFp4,
  kGeneral
};
constexpr bool IsMxFp4(MatmulKind kind) {
  return kind == MatmulKind::kMmaMxFp4 || kind == MatmulKind::kMmaMxFp4Stored;
}
constexpr bool IsFp4(MatmulKind kind) { return IsMxFp4(kind) || kind == MatmulKind::kMmaNvFp4; }

struct DeviceWeight {
  const uint8_t* data = nullptr;
  const void* scale = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t block_rows = 1;
  int64_t block_cols = 1;
  int64_t scale_cols = 0;
  int block_rows_log2 = 0;  // Rows of the kinds that want powers of two.
  int block_cols_log2 = 0;
  float global_scale = 1.0F;
  bool global_scale_divides = false;
  WeightFormat format = WeightFormat::kPlain;
  DType data_dtype = DType::kBF16;
  DType scale_dtype = DType::kF32;
  MatmulKind kind = MatmulKind::kGeneral;
  bool quantized_x = false;  // The activations in front of it are rounded to FP8,
  int x_group = 0;           // in groups of so many columns; 0 where they are not.
  bool exact_x = false;      // They are exact in bf16.
  bool repacked = false;     // FP4 in the order of e2m1_order.h, not as stored.
  ScaleCodes scale_codes;

  friend bool operator==(const DeviceWeight&, const DeviceWeight&) = default;
};

// Whether data and scales begin where cp.async.bulk may begin.
inline bool IsBulkAligned(const DeviceWeight& weight) {
  constexpr uintptr_t kAlignment = 16;
  return reinterpret_cast<uintptr_t>(weight.data) % kAlignment == 0 &&
         reinterpret_cast<uintptr_t>(weight.scale) % kAlignment == 0;
}

inline bool IsPowerOfTwo(int64_t value) { return std::has_single_bit(static_cast<uint64_t>(value)); }

inline bool IsExactInBf16(const Weight& weight, DType x_dtype) {
  return weight.activation != ActivationQuant::kNone || x_dtype == DType::kBF16;
}

// Whether rows of its activations share scales by fewer columns than products in FP8 can do with: V4.1's, of
// 32. Other kernels round them as they load.
inline bool RoundsFine(const DeviceWeight& weight) {
  return weight.x_group > 0 && weight.x_group != kActivationBlock;
}

// Columns of a block of kMmaMxFp8, which a lane's 16 columns lie in; a unit of 64 has two, whose scales are
// applied to weights.
inline constexpr int64_t kMxFp8Block = 32;

// Powers of two by which a code's bits as a bf16 are less than its value (gemm_mma.cuh). A kernel multiplies by
// them and by a block's E8M0 scale at once, so that both together are a number that bf16 has: 2^127 at most. Larger
// scales, beyond 2 of MXFP4 and 128 of fine FP8, are in no checkpoint seen.
inline constexpr int kE2m1Shift = 126;
inline constexpr int kE4m3Shift = 120;
inline constexpr int kLargestOfTwo = 254;

inline MatmulKind KindOf(const Weight& weight, DType x_dtype) {
  if (!IsExactInBf16(weight, x_dtype)) return MatmulKind::kGeneral;
  const int largest = weight.scale_codes.largest;
  // A lane reads 16 bytes of a row at a time, and they must be of that row.
  switch (weight.format) {
    case WeightFormat::kPlain:
      return weight.data.dtype == DType::kBF16 && weight.cols % 8 == 0 ? MatmulKind::kMmaBf16
                                                                       : MatmulKind::kGeneral;
    case WeightFormat::kFp8Block:
      // The blocks of a position are found by shifts.
      if (weight.cols % 16 != 0 || !IsPowerOfTwo(weight.block_cols) || !IsPowerOfTwo(weight.block_rows))
        return MatmulKind::kGeneral;
      // A unit of 64 columns lies in one.
      if (weight.block_cols % 64 == 0) return MatmulKind::kMmaFp8;
      return weight.block_cols == kMxFp8Block && weight.scale.dtype == DType::kF8E8M0 &&
                     largest + kE4m3Shift <= kLargestOfTwo
                 ? MatmulKind::kMmaMxFp8
                 : MatmulKind::kGeneral;
    case WeightFormat::kMxFp4:
      if (largest + kE2m1Shift > kLargestOfTwo) return MatmulKind::kGeneral;
      return weight.repacked ? MatmulKind::kMmaMxFp4 : MatmulKind::kMmaMxFp4Stored;
    case WeightFormat::kNvFp4:
      return weight.repacked ? MatmulKind::kMmaNvFp4 : MatmulKind::kGeneral;
  }
  return MatmulKind::kGeneral;
}

inline DeviceWeight MakeDeviceWeight(const Weight& weight, DType x_dtype) {
  return {.data = weight.data.as<const uint8_t>(),
          .scale = weight.scale.data,
          .rows = weight.rows,
          .cols = weight.cols,
          .block_rows = weight.block_rows,
          .block_cols = weight.block_cols,
          .scale_cols = weight.scale.is_null() ? 0 : weight.scale.shape[1],
          .block_rows_log2 = std::countr_zero(static_cast<uint64_t>(weight.block_rows)),
          .block_cols_log2 = std::countr_zero(static_cast<uint64_t>(weight.block_cols)),
          .global_scale = weight.global_scale,
          .global_scale_divides = weight.global_scale_divides,
          .format = weight.format,
          .data_dtype = weight.data.dtype,
          .scale_dtype = weight.scale.dtype,
          .kind = KindOf(weight, x_dtype),
          .quantized_x = weight.activation != ActivationQuant::kNone,
          .x_group = static_cast<int>(ActivationGroup(weight.activation)),
          .exact_x = IsExactInBf16(weight, x_dtype),
          .repacked = weight.repacked,
          .scale_codes = weight.scale_codes};
}

}  // namespace dsv4::backend::cuda
