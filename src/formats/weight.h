// The stored form of a linear layer's weight, and its exact expansion to fp32.
//
// Every checkpoint format the engine reads is one of four (quantization.md, sections 1 and 3). The logical
// matrix is [rows, cols] = [out_features, in_features], y = W x. Packed 4-bit formats hold element 2j of a
// row in the low nibble of byte j and element 2j + 1 in the high nibble.
//
// | format    | data                       | scale                                         | value                       |
// | kPlain    | [rows, cols] F32 F16 BF16  | absent                                        | data                        |
// | kFp8Block | [rows, cols] F8_E4M3       | [ceil(rows/block_rows), ceil(cols/block_cols)] F8_E8M0, F32 or BF16 | data * scale |
// | kMxFp4    | [rows, cols/2] I8 or U8    | [rows, cols/32] F8_E8M0                       | e2m1 * scale                |
// | kNvFp4    | [rows, cols/2] U8 or I8    | [rows, cols/16] F8_E4M3                       | e2m1 * (scale * global)     |
//
// global is `weight_scale_2` (a multiplier, ModelOpt) or the reciprocal of `weight_global_scale` (a divisor,
// compressed-tensors). scale * global is rounded once to fp32; `input_scale` never takes part.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "tensor/tensor.h"

namespace dsv4 {

enum class WeightFormat : uint8_t { kPlain, kFp8Block, kMxFp4, kNvFp4 };

// "bf16", "f32", "f16", "fp8-block", "mxfp4", "nvfp4" need the dtype too: see FormatName(weight).
std::string_view WeightFormatName(WeightFormat format);

inline constexpr int64_t kMxFp4Block = 32;
inline constexpr int64_t kNvFp4Block = 16;

// How the activations in front of a weight are rounded (model.md 2.2). A property of the weight and of the
// chosen numerics, fixed at load.
enum class ActivationQuant : uint8_t {
  kNone,         // As they are.
  kFp8Block,     // Per row and 128 columns: e4m3 with a power-of-two scale.
  kFp8Columns32  // The same per row and 32 columns: V4.1.
};
inline constexpr int64_t kActivationBlock = 128;
// Columns that share a scale; 0 where activations stay as they are.
constexpr int64_t ActivationGroup(ActivationQuant quant) {
  return quant == ActivationQuant::kNone ? 0 : quant == ActivationQuant::kFp8Block ? kActivationBlock : 32;
}

// The least and the largest code among a weight's E8M0 scales; all that there are before prepare_weight.
struct ScaleCodes {
  uint8_t least = 0;
  uint8_t largest = 255;
  friend bool operator==(const ScaleCodes&, const ScaleCodes&) = default;
};

struct Weight {
  WeightFormat format = WeightFormat::kPlain;
  int64_t rows = 0;  // out_features
  int64_t cols = 0;  // in_features
  TensorView data;
  TensorView scale;
  int64_t block_rows = 1;  // kFp8Block only.
  int64_t block_cols = 1;
  float global_scale = 1.0F;          // kNvFp4 only: the number in the file.
  bool global_scale_divides = false;  // kNvFp4 only: true for compressed-tensors' weight_global_scale.
  ActivationQuant activation = ActivationQuant::kNone;
  bool repacked = false;   // By prepare_weight: data lies in an order of the backend's own.
  ScaleCodes scale_codes;  // By prepare_weight, where it looks through E8M0 scales.
  Buffer owner;            // Keeps prepared copies alive; empty when the views borrow from the mapped file.

  // Rows [begin, end) of the same weight: begin must be a multiple of block_rows for kFp8Block.
  Weight Rows(int64_t begin, int64_t end) const;
};

// Ok when dims, dtypes and scale shapes agree; the message begins with `name`.
Status ValidateWeight(const Weight& weight, std::string_view name);

// Ok when every scale is a number the format allows: e8m0 not 255; NVFP4 block scales neither negative nor
// NaN; F32 and BF16 scales finite and not negative; the global scale finite and positive. Reads all scales:
// for load time. Host memory only; the weight must be valid.
Status ValidateScaleValues(const Weight& weight, std::string_view name);

// Writes the `cols` values of one row as fp32. Host memory only; the weight must be valid.
void DequantizeRow(const Weight& weight, int64_t row, float* out);

}  // namespace dsv4
