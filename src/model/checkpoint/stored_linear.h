// How one linear layer lies in a checkpoint: its format, decided from dtypes, shapes and sibling tensors
// alone.
//
// Names of the parts of a linear called X (quantization.md 8; the suffixes of all writers are accepted on any
// name):
//   elements      X.weight, X.weight_packed
//   block scales  X.scale (release), X.weight_scale (ModelOpt, compressed-tensors), X.weight_scale_inv (transformers;
//                 a multiplier in spite of its name)
//   global scale  X.weight_scale_2 (ModelOpt, multiplies), X.weight_global_scale (compressed-tensors, divides)
//   unused        X.input_scale, X.input_global_scale
// | elements            | siblings                                    | format    |
// | F32, F16, BF16      | none                                        | kPlain    |
// | F8_E4M3             | block scales, or one per row, or one at all | kFp8Block |
// | I8, U8 [N, K/2]     | block scales [N, K/32], e8m0                | kMxFp4    |
// | U8, I8 [N, K/2]     | block scales [N, K/16], e4m3; global scale  | kNvFp4    |
// Some writers store e8m0 as U8; it is read as e8m0. Everything else is an error that names the tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "formats/weight.h"
#include "io/checkpoint.h"
#include "model/checkpoint/scale_checks.h"
#include "model/config/config.h"

namespace dsv4::model {

// A tensor of the file, or one expert's part of a tensor that holds all experts. Borrows from the checkpoint.
struct TensorPart {
  const io::StoredTensor* tensor = nullptr;  // Null: absent.
  std::vector<int64_t> dims;
  std::span<const std::byte> bytes;

  static TensorPart Whole(const io::StoredTensor* tensor);
  // Entry `index` of `count` along the first dimension, which is dropped. A tensor of one element belongs to
  // all. InvalidArgument when the first dimension is not `count`.
  static Result<TensorPart> Slice(const io::StoredTensor* tensor, int64_t index, int64_t count);
};

struct LinearParts {
  TensorPart weight;
  TensorPart scale;
  TensorPart multiplier;  // weight_scale_2
  TensorPart divisor;     // weight_global_scale
};

// The layout by header alone; no byte of data was read.
struct StoredLinear {
  WeightFormat format = WeightFormat::kPlain;
  int64_t rows = 0;
  int64_t cols = 0;
  DType data_dtype = DType::kF32;
  DType scale_dtype = DType::kF32;
  int64_t scale_rows = 0;
  int64_t scale_cols = 0;
  int64_t block_rows = 1;
  int64_t block_cols = 1;
  std::span<const std::byte> data;
  std::span<const std::byte> scale;
  std::span<const std::byte> global_scale;  // 4 bytes F32, kNvFp4 only.
  bool global_scale_divides = false;
  const io::StoredTensor* weight_tensor = nullptr;  // For messages.

  bool found() const { return weight_tensor != nullptr; }
  int64_t num_bytes() const { return static_cast<int64_t>(data.size() + scale.size() + global_scale.size()); }
  // "fp8-block [128, 128] F8_E8M0", "bf16": for people.
  std::string FormatName() const;
  // Rows [begin, end). InvalidArgument where `begin` lies inside a scale block.
  Result<StoredLinear> Rows(int64_t begin, int64_t end) const;
  // The same with scales for smaller blocks where `begin` lies inside one; `copies` then owns them.
  Result<StoredLinear> RowsFrom(int64_t begin, int64_t end, std::vector<Buffer>& copies) const;
  // Columns [begin, end), copied; `copies` then owns them. InvalidArgument where `begin` lies inside a scale
  // block or a byte.
  Result<StoredLinear> Columns(int64_t begin, int64_t end, std::vector<Buffer>& copies) const;
  // The same as far as sizes go; its numbers are others.
  Result<StoredLinear> SizesOfColumns(int64_t begin, int64_t end) const;
  // Rows and columns that the format keeps together: cuts at multiples of them are always possible.
  int64_t row_unit() const { return scale_rows > 1 ? block_rows : 1; }
  int64_t column_unit() const;

 private:
  template <typename Take>
  Result<StoredLinear> ColumnsBy(int64_t begin, int64_t end, const Take& take) const;
};

// Decides the format of a linear of [rows, cols]. Errors name the tensor, what it holds and what the format
// wants.
Result<StoredLinear> DescribeLinear(const LinearParts& parts, int64_t rows, int64_t cols,
                                    const QuantizationConfig& quantization);

// Whether an NVFP4 linear is an exact transcode of an MXFP4 one (quantization.md 2.7). The global scale and
// all block scales are then powers of two, and the two blocks of every 32 columns share theirs. Reads all
// scales. False for other formats.
bool IsMxFp4Transcode(const StoredLinear& stored);

// The weight over the file's bytes, wherever they lie: for readers that ask for no alignment, such as
// DequantizeRow.
Weight WeightOf(const StoredLinear& stored);

// The weight over the file's bytes. Parts that lie badly for their dtype are copied; `copies` then owns them.
// `checks` is given its scales; elements are not touched.
Result<Weight> LoadLinear(const StoredLinear& stored, ActivationQuant activation, std::vector<Buffer>& copies,
                          ScaleChecks& checks);
// The same without a look at its numbers.
Result<Weight> LoadSizes(const StoredLinear& stored, ActivationQuant activation, std::vector<Buffer>& copies);

}  // namespace dsv4::model
